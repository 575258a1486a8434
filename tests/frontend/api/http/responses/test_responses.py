"""OpenAI's Responses API over a real port, by its official client: answers, streams, tools, parameters of the engine."""

import json

import openai
import pytest

from tests.frontend.api.http.responses.client import TOOLS, client_of
from tests.frontend.fakes import TEXT
from tests.frontend.turns import FORMATS, TEXTS, WEATHER, writes

TYPES = {
    "text": ["message"],
    "unicode": ["message"],
    "reasoning": ["reasoning", "message"],
    "call": ["function_call"],
    "calls": ["function_call", "function_call"],
    "text and call": ["message", "function_call"],
    "all": ["reasoning", "message", "function_call", "function_call"],
    "only reasoning": ["reasoning"],
    "nothing": [],
}


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS, drain_timeout_s=0.2) as running:
        yield running


@pytest.fixture
async def client(frontend):
    async with client_of(frontend) as opened:
        yield opened


def user(text):
    return {"role": "user", "content": text}


def prompt_of(request):
    """Return the prompt that the engine got; the fake template writes `<role>content`."""
    return bytes(i for i in memoryview(request.prompt_token_ids).cast("I")).decode()


async def test_response_by_the_official_client(client):
    response = await client.responses.create(model="fake", input="hi", instructions="be", max_output_tokens=9)

    assert (response.output_text, response.status) == (TEXT[:9], "incomplete")
    assert response.incomplete_details.reason == "max_output_tokens"
    prompt_tokens = len("<system>be\n<user>hi\n<assistant>")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (prompt_tokens, 9)
    assert response.usage.input_tokens_details.cached_tokens == prompt_tokens // 16 * 16
    assert response.id.startswith("resp_")


async def test_a_response_repeats_what_was_asked_for(http):
    body = {
        "input": "hi",
        "max_output_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "tools": TOOLS,
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]},
        "metadata": {"a": "b"},
        "user": "me",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": WEATHER}, "verbosity": "low"},
        "truncation": "auto",
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "top_logprobs": 2,
    }

    response = (await http.post("/v1/responses", json=body)).json()

    changed = {"input", "tools", "reasoning"}
    assert {name: response[name] for name in body if name not in changed} == {
        name: value for name, value in body.items() if name not in changed
    }
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert [(tool["name"], tool["strict"]) for tool in response["tools"]] == [("get_weather", False), ("get_time", False)]
    assert (response["store"], response["background"], response["previous_response_id"]) == (True, False, None)


def shown(response):
    """Return the output without what is made anew for each answer: ids."""
    return [item.model_dump(exclude={"id", "call_id", "parsed_arguments"}) for item in response.output]


@pytest.mark.parametrize("tokens_per_step", [1, 5, 200])
async def test_the_official_clients_stream_adds_up_to_the_whole_response(client, engine, tokens_per_step):
    for kind, text in TEXTS.items():
        writes(engine, text)
        request = {"model": "fake", "input": "hi", "tools": TOOLS}
        engine.tokens_per_step = 16
        whole = await client.responses.create(**request)

        engine.tokens_per_step = tokens_per_step
        async with client.responses.stream(**request) as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            streamed = await stream.get_final_response()

        assert [item["type"] for item in shown(streamed)] == TYPES[kind]
        assert json.dumps(shown(streamed)).replace(', "parsed": null', "") == json.dumps(shown(whole)), kind
        assert (streamed.status, streamed.usage) == ("completed", whole.usage)
        assert "".join(texts) == whole.output_text


async def test_a_tool_round_trip_through_the_store(client, engine):
    writes(engine, TEXTS["call"], "It rains.")
    asked = await client.responses.create(model="fake", input="Weather?", tools=TOOLS)
    [call] = asked.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}

    answer = await client.responses.create(model="fake", input=[result], previous_response_id=asked.id, tools=TOOLS)

    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Zürich"})
    assert (answer.output_text, answer.previous_response_id) == ("It rains.", asked.id)
    assert prompt_of(engine.requests[1]) == "<user>Weather?\n<assistant>\n<tool>rain\n<assistant>"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_a_stop_string_cut_off_is_incomplete_and_left_out_of_what_follows(http, engine, stream):
    """Clients run complete calls; templates need the arguments of all calls as valid JSON."""
    writes(engine, TEXTS["calls"], "It rains.")
    body = {"input": "Weather?", "tools": TOOLS, "stop": "ris"}
    answer = await http.post("/v1/responses", json=body | {"stream": stream})
    cut = json.loads(answer.text.strip().rsplit("data: ", 1)[1])["response"] if stream else answer.json()

    after = await http.post("/v1/responses", json={"input": "And?", "previous_response_id": cut["id"], "tools": TOOLS})

    assert [(item["name"], item["status"]) for item in cut["output"]] == [("get_weather", "incomplete")]
    assert cut["status"] == "completed"
    assert (after.status_code, after.json()["output"][0]["content"][0]["text"]) == (200, "It rains.")


@pytest.mark.parametrize("replayed", [False, True])
async def test_an_incomplete_call_that_has_an_output_stays_in_the_conversation(client, engine, replayed):
    """The limit ended the response behind the arguments; the client could run the call."""
    writes(engine, TEXTS["call"], "It rains.", "Yes.")
    limit = len(TEXTS["call"].removesuffix("\n</tool_call>").encode())
    asked = await client.responses.create(model="fake", input="Weather?", tools=TOOLS, max_output_tokens=limit)
    [call] = asked.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    if replayed:
        items = [{"role": "user", "content": "Weather?"}, call.model_dump(exclude_none=True), result]
        first = await client.responses.create(model="fake", input=items, tools=TOOLS)
    else:
        first = await client.responses.create(model="fake", input=[result], previous_response_id=asked.id, tools=TOOLS)

    second = await client.responses.create(model="fake", input="Sure?", previous_response_id=first.id, tools=TOOLS)

    assert (call.status, first.output_text, second.output_text) == ("incomplete", "It rains.", "Yes.")


async def test_a_tool_round_trip_without_the_store(client, engine):
    writes(engine, TEXTS["all"], "It rains.")
    asked = await client.responses.create(model="fake", input="Weather?", tools=TOOLS, store=False)
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in asked.output
        if item.type == "function_call"
    ]
    said = [item.model_dump(exclude_none=True) for item in asked.output]

    answer = await client.responses.create(
        model="fake", input=[{"role": "user", "content": "Weather?"}, *said, *results], tools=TOOLS, store=False
    )

    assert answer.output_text == "It rains."
    assert prompt_of(engine.requests[1]).endswith("<tool>rain\n<tool>rain\n<assistant>")


async def test_instructions_are_not_carried_over(client, engine):
    first = await client.responses.create(model="fake", input="a", instructions="be", max_output_tokens=3)

    await client.responses.create(model="fake", input="b", previous_response_id=first.id, max_output_tokens=3)

    assert prompt_of(engine.requests[1]) == "<user>a\n<assistant>The\n<user>b\n<assistant>"


async def test_an_item_may_be_referred_to(client, engine):
    first = await client.responses.create(model="fake", input="a", max_output_tokens=3)
    reference = {"type": "item_reference", "id": first.output[0].id}

    await client.responses.create(
        model="fake", input=[{"role": "user", "content": "x"}, reference, {"role": "user", "content": "b"}], max_output_tokens=1
    )

    assert prompt_of(engine.requests[1]) == "<user>x\n<assistant>The\n<user>b\n<assistant>"


async def test_items_of_one_response_may_be_referred_to_in_another_order(client, engine):
    first = await client.responses.create(model="fake", input=[user("a"), user("b")], max_output_tokens=3)
    ids = [item.id for item in (await client.responses.input_items.list(first.id)).data]

    references = [{"type": "item_reference", "id": id_} for id_ in (first.output[0].id, *ids)]
    await client.responses.create(model="fake", input=references, max_output_tokens=1)

    assert prompt_of(engine.requests[1]) == "<assistant>The\n<user>b\n<user>a\n<assistant>"


async def test_an_item_may_be_referred_to_once(client, engine):
    """OpenAI refuses duplicates, too."""
    first = await client.responses.create(model="fake", input="a", max_output_tokens=3)
    reference = {"type": "item_reference", "id": first.output[0].id}

    with pytest.raises(openai.BadRequestError, match=f"Duplicate item found with id '{first.output[0].id}'") as refused:
        await client.responses.create(model="fake", input=[user("x"), reference, user("b"), reference], max_output_tokens=1)

    assert refused.value.param == "input.3.id"
    assert len(engine.requests) == 1


async def test_input_tokens_are_counted(client):
    count = await client.responses.input_tokens.count(model="fake", input="hi", instructions="be")

    assert count.input_tokens == len("<system>be\n<user>hi\n<assistant>")


async def test_logprobs_are_sent_with_the_text(client):
    request = {"model": "fake", "input": "hi", "max_output_tokens": 3, "top_logprobs": 2}
    include = ["message.output_text.logprobs"]
    whole = await client.responses.create(**request, include=include)
    plain = await client.responses.create(**request)

    streamed = []
    async with client.responses.stream(**request, include=include) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                streamed += event.logprobs

    logprobs = whole.output[0].content[0].logprobs
    assert [(each.token, each.logprob, len(each.top_logprobs)) for each in logprobs] == [(c, -0.5, 2) for c in "The"]
    assert [each.token for each in streamed] == ["T", "h", "e"]
    assert plain.output[0].content[0].logprobs == []


async def test_reasoning_tokens_are_counted(client, engine):
    writes(engine, TEXTS["reasoning"])

    response = await client.responses.create(model="fake", input="hi")

    assert response.output[0].content[0].text == "Let me think."
    details = response.usage.output_tokens_details
    assert len("Let me think.") <= details.reasoning_tokens <= len("<think>Let me think.</think>")


async def test_forced_calls(client, engine):
    writes(engine, '{"city": "Oslo"}')

    response = await client.responses.create(
        model="fake", input="hi", tools=TOOLS, tool_choice={"type": "function", "name": "get_weather"}
    )

    assert [(item.type, item.name, item.arguments) for item in response.output] == [
        ("function_call", "get_weather", '{"city": "Oslo"}')
    ]
    assert json.loads(engine.requests[0].sampling_params.structured_outputs.json_schema)


async def test_sampling_fields_reach_the_engine(http, engine):
    extras = {"top_k": 7, "min_p": 0.25, "seed": 5, "priority": 3, "stop": ["x"], "min_tokens": 1, "logit_bias": {"65": 1}}

    response = await http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 3, **extras})

    assert response.status_code == 200
    [request] = engine.requests
    params = request.sampling_params
    assert (params.top_k, params.min_p, params.seed, request.priority, params.min_tokens) == (7, 0.25, 5, 3, 1)


async def test_truncation_drops_the_oldest_turns(http, engine):
    turns = [{"role": role, "content": f"{number}{role[0]}" * 20} for number in range(9) for role in ("user", "assistant")]
    items = [{"role": "system", "content": "be"}, *turns, {"role": "user", "content": "last"}]
    body = {"input": items, "max_output_tokens": 100}

    refused = await http.post("/v1/responses", json=body | {"max_output_tokens": None})
    taken = await http.post("/v1/responses", json=body | {"truncation": "auto"})

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert taken.status_code == 200
    prompt = prompt_of(engine.requests[0])
    assert prompt.startswith("<system>be\n<user>")
    assert prompt.endswith("<user>last\n<assistant>")
    # One more turn would not have fitted.
    assert 512 - 100 - 2 * 50 < len(prompt) <= 512 - 100


@pytest.mark.parametrize("max_output_tokens", [505, 512, 4096])
async def test_truncation_drops_nothing_for_an_output_that_cannot_have_its_room_anyway(http, engine, max_output_tokens):
    """The last turn alone leaves no room for so many tokens; max_output_tokens is then limited to the context."""
    items = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    engine.tokens_per_step = 64

    answer = await http.post(
        "/v1/responses", json={"input": items, "truncation": "auto", "max_output_tokens": max_output_tokens}
    )

    assert answer.status_code == 200
    assert prompt_of(engine.requests[0]) == "<user>user\n<assistant>assistant\n<user>user\n<assistant>"


async def test_input_tokens_are_counted_after_truncation(http):
    turns = [{"role": role, "content": "x" * 50} for _ in range(9) for role in ("user", "assistant")]
    body = {"input": [*turns, {"role": "user", "content": "last"}], "truncation": "auto"}

    count = await http.post("/v1/responses/input_tokens", json=body)
    answer = await http.post("/v1/responses", json=body)

    assert count.json()["input_tokens"] == answer.json()["usage"]["input_tokens"]
