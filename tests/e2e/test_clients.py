"""The official clients of OpenAI and Anthropic against a live server with a real model: their first examples."""

import json

import anthropic
import openai
import pytest

QUESTION = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}}, "required": ["city"]}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": CITY}}
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "description": "Weather of a city.", "parameters": CITY}
MESSAGES_TOOL = {"name": "get_weather", "description": "Weather of a city.", "input_schema": CITY}
RESULT = "It rains, 12 degrees."


@pytest.fixture(scope="module")
def openai_client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def model(openai_client):
    return openai_client.models.list().data[0].id


def test_a_response_streamed_and_read_again(openai_client, model):
    request = {"model": model, "input": "Name the capital of France.", "max_output_tokens": 12, "temperature": 0}
    whole = openai_client.responses.create(**request)

    with openai_client.responses.stream(**request) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        streamed = stream.get_final_response()

    assert "".join(texts) == streamed.output_text == whole.output_text
    assert "Paris" in whole.output_text
    assert (whole.status, 0 < whole.usage.output_tokens <= 12) == ("completed", True)
    assert openai_client.responses.retrieve(whole.id) == whole


def test_a_response_remembers_the_one_before(openai_client, model):
    first = openai_client.responses.create(
        model=model, input="My name is Ada.", max_output_tokens=8, temperature=0, instructions="Be brief."
    )

    second = openai_client.responses.create(
        model=model, input="What is my name?", previous_response_id=first.id, max_output_tokens=12, temperature=0
    )

    said = [{"role": "user", "content": "My name is Ada."}, *first.output, {"role": "user", "content": "What is my name?"}]
    in_full = openai_client.responses.create(model=model, input=said, max_output_tokens=12, temperature=0)
    items = openai_client.responses.input_items.list(second.id, order="asc").data
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert (second.output_text, second.usage.input_tokens) == (in_full.output_text, in_full.usage.input_tokens)


def test_a_tool_round_trip_of_responses(openai_client, model):
    asked = openai_client.responses.create(
        model=model, input=QUESTION, tools=[RESPONSES_TOOL], tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    [call] = asked.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}

    answer = openai_client.responses.create(
        model=model,
        input=[output],
        previous_response_id=asked.id,
        tools=[RESPONSES_TOOL],
        tool_choice="none",
        max_output_tokens=16,
        temperature=0,
    )

    assert (call.type, call.name) == ("function_call", "get_weather")
    assert json.loads(call.arguments)["city"] in ("Paris", "Oslo")
    assert answer.output_text


def test_a_tool_round_trip_of_chats(openai_client, model):
    asked = openai_client.chat.completions.create(
        model=model, messages=QUESTION, tools=[CHAT_TOOL], tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    [call] = asked.choices[0].message.tool_calls

    answer = openai_client.chat.completions.create(
        model=model,
        messages=[
            *QUESTION,
            asked.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": RESULT},
        ],
        tools=[CHAT_TOOL],
        tool_choice="none",
        max_tokens=16,
        temperature=0,
    )

    assert asked.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    assert answer.choices[0].message.content


def test_a_message_streamed_and_counted(anthropic_client, model):
    messages = [{"role": "user", "content": "Name the capital of France."}]
    request = {"model": model, "messages": messages, "max_tokens": 12, "extra_body": {"temperature": 0}}
    whole = anthropic_client.messages.create(**request)

    with anthropic_client.messages.stream(**request) as stream:
        texts = list(stream.text_stream)
        streamed = stream.get_final_message()

    count = anthropic_client.messages.count_tokens(model=model, messages=messages)
    assert "".join(texts) == streamed.content[0].text == whole.content[0].text
    assert "Paris" in whole.content[0].text
    assert (whole.stop_reason, streamed.stop_reason, 0 < whole.usage.output_tokens <= 12) == ("end_turn", "end_turn", True)
    assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens == count.input_tokens


def test_thinking_may_be_switched_on_for_a_model_that_does_not_think(anthropic_client, model):
    thinking = {"type": "enabled", "budget_tokens": 1024}

    message = anthropic_client.messages.create(
        model=model, messages=QUESTION, max_tokens=1030, thinking=thinking, stop_sequences=["a", "e"]
    )

    assert {block.type for block in message.content} <= {"text"}
    assert message.stop_reason in ("stop_sequence", "end_turn")


def test_a_tool_round_trip_of_messages(anthropic_client, model):
    asked = anthropic_client.messages.create(
        model=model,
        messages=QUESTION,
        max_tokens=64,
        tools=[MESSAGES_TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        extra_body={"temperature": 0},
    )
    [call] = asked.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}

    answer = anthropic_client.messages.create(
        model=model,
        messages=[*QUESTION, {"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}],
        max_tokens=16,
        tools=[MESSAGES_TOOL],
        tool_choice={"type": "none"},
        extra_body={"temperature": 0},
    )

    assert (asked.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "get_weather")
    assert call.input["city"] in ("Paris", "Oslo")
    assert answer.content[0].text


def test_errors_are_the_clients_own(openai_client, anthropic_client, model):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        openai_client.responses.create(model="gpt-9", input="hi")
    with pytest.raises(openai.BadRequestError, match="web_search"):
        openai_client.responses.create(model=model, input="hi", tools=[{"type": "web_search"}])
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        anthropic_client.messages.create(model="claude-9", messages=QUESTION, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="is not a multimodal model"):
        image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        anthropic_client.messages.create(model=model, messages=[{"role": "user", "content": [image]}], max_tokens=1)
