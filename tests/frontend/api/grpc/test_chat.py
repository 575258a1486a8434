"""Chats over gRPC: all features of HTTP's chats, with the same answers."""

import json

import pytest

from tests.frontend.api.grpc.chat_client import HTTP_TOOLS, TOOLS, USER, added_up
from tests.frontend.turns import TEXTS, WEATHER, call, writes
from tetrad.v1 import inference_pb2 as pb
from tetrad.v1 import types_pb2


async def test_a_turn_whose_last_call_a_stop_string_cuts_off_ends_with_stop(client, engine):
    writes(engine, TEXTS["all"])

    _, _, calls, finish_reason = await client.ask(tools=TOOLS, text_options=pb.TextOptions(stop=["ris"]))

    assert ([each.arguments_json for each in calls], finish_reason) == (['{"city": "Pa'], "stop")


async def test_a_tool_round_trip(client, engine, tokenizer):
    writes(engine, TEXTS["all"], "It rains.")

    first = await client.ask(tools=TOOLS)
    reasoning, content, calls, finish_reason = first
    turn = pb.ChatMessage(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
    results = [pb.ChatMessage(role="tool", tool_call_id=each.id, content=f"result of {each.name}") for each in calls]
    second = await client.ask(tools=TOOLS, messages=[USER, turn, *results])

    assert finish_reason == "tool_calls"
    assert [(each.name, json.loads(each.arguments_json)) for each in calls] == [
        ("get_weather", {"city": "Paris"}),
        ("get_time", {}),
    ]
    assert second == ("", "It rains.", [], "stop")
    _, shown, *tools = json.loads(tokenizer.rendered[-1].messages_json)
    assert shown["reasoning_content"] == "I need the weather."
    assert [(each["id"], each["function"]["name"]) for each in shown["tool_calls"]] == [(each.id, each.name) for each in calls]
    assert [(each["tool_call_id"], each["content"]) for each in tools] == [
        (calls[0].id, "result of get_weather"),
        (calls[1].id, "result of get_time"),
    ]


@pytest.mark.parametrize("kind", TEXTS)
async def test_deltas_add_up_to_what_http_answers(client, engine, kind):
    writes(engine, TEXTS[kind])
    whole = (await client.ask_http(tools=HTTP_TOOLS, max_tokens=400))["choices"][0]
    message = whole["message"]

    for tokens_per_step in (1, 2, 7, 1000):
        engine.tokens_per_step = tokens_per_step
        reasoning, content, calls, finish_reason = await client.ask(tools=TOOLS)

        assert (reasoning, content) == (message.get("reasoning", ""), message["content"] or "")
        assert [(each.name, each.arguments_json) for each in calls] == [
            (each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", [])
        ]
        assert finish_reason == whole["finish_reason"]


# What a request says -> the fields of the body that say the same over HTTP.
SAME = {
    "required": (
        {"tools": TOOLS, "tool_choice": pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED)},
        {"tools": HTTP_TOOLS, "tool_choice": "required"},
    ),
    "one call": (
        {"tools": TOOLS, "tool_choice": pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED), "parallel_tool_calls": False},
        {"tools": HTTP_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    ),
    "named": (
        {"tools": TOOLS, "tool_choice": pb.ToolChoice(function="get_weather")},
        {"tools": HTTP_TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    ),
    "allowed": (
        {
            "tools": TOOLS,
            "tool_choice": pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED, allowed_functions=["get_time"]),
        },
        {
            "tools": HTTP_TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]},
            },
        },
    ),
    "strict": (
        {"tools": [pb.Tool(name="get_weather", parameters_json=json.dumps(WEATHER), strict=True)]},
        {"tools": [{"function": {"name": "get_weather", "parameters": WEATHER, "strict": True}}]},
    ),
    "none": (
        {"tools": TOOLS, "tool_choice": pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_NONE)},
        {"tools": HTTP_TOOLS, "tool_choice": "none"},
    ),
    "a schema": (
        {
            "sampling_params": types_pb2.SamplingParams(
                structured_outputs=types_pb2.StructuredOutputs(
                    json_schema='{"type": "object"}', disable_additional_properties=True
                )
            )
        },
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True},
            }
        },
    ),
    "a schema or a call": (
        {
            "tools": TOOLS,
            "sampling_params": types_pb2.SamplingParams(structured_outputs=types_pb2.StructuredOutputs(json_object=True)),
        },
        {"tools": HTTP_TOOLS, "response_format": {"type": "json_object"}},
    ),
    "template": (
        {
            "chat_template": "{{ x }}",
            "chat_template_kwargs_json": '{"x": 1}',
            "documents_json": '[{"title": "a", "text": "b"}]',
            "reasoning_effort": "none",
            "add_special_tokens": True,
        },
        {
            "chat_template": "{{ x }}",
            "chat_template_kwargs": {"x": 1},
            "documents": [{"title": "a", "text": "b"}],
            "reasoning_effort": "none",
            "add_special_tokens": True,
        },
    ),
    "parts": (
        {
            "messages": [
                pb.ChatMessage(role="user", content_parts=[pb.ContentPart(text="a"), pb.ContentPart(text="b")], name="Ann"),
                pb.ChatMessage(role="assistant", content_parts=[pb.ContentPart(refusal="no")]),
            ]
        },
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ]
        },
    ),
    "continued": ({"continue_final_message": True}, {"continue_final_message": True}),
    "no generation prompt": ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
    "truncated": (
        {"truncate_prompt_tokens": 3, "truncation_side": "right"},
        {"truncate_prompt_tokens": 3, "truncation_side": "right"},
    ),
    "texts": (
        {"text_options": pb.TextOptions(bad_words=["x"], allowed_token_ids=pb.TokenIdList(ids=[1, 2]), stop=["zz"])},
        {"bad_words": ["x"], "allowed_token_ids": [1, 2], "stop": ["zz"]},
    ),
}


@pytest.mark.parametrize("case", SAME)
async def test_what_is_asked_for_reaches_template_and_engine_as_over_http(client, engine, tokenizer, case):
    fields, body = SAME[case]
    writes(engine, "{}")

    await client.deltas(**fields)
    answer = await client.ask_http(**body)

    assert "choices" in answer
    rendered, rendered_http = tokenizer.rendered[-2:]
    assert rendered == rendered_http
    params, params_http = (request.sampling_params for request in engine.requests[-2:])
    params_http.seed = params.seed
    assert params == params_http
    assert engine.requests[-2].prompt_token_ids == engine.requests[-1].prompt_token_ids


async def test_each_turn_has_its_own_calls_and_usage(client, engine):
    writes(engine, "<think>hm</think>" + call("get_time"))

    responses = await client.deltas(tools=TOOLS, n=3)

    turns = [added_up(responses, index) for index in range(3)]
    assert [(reasoning, content, finish) for reasoning, content, _, finish in turns] == [("hm", "", "tool_calls")] * 3
    assert len({each.id for _, _, calls, _ in turns for each in calls}) == 3
    usages = [response.usage for response in responses if response.finish_reason]
    assert [usage.reasoning_tokens for usage in usages] == [len("<think>hm</think>")] * 3


async def test_reasoning_can_be_left_out_and_the_last_message_echoed(client, engine):
    writes(engine, TEXTS["reasoning"])
    messages = [USER, pb.ChatMessage(role="assistant", content="Well, ")]

    turn = await client.ask(messages=messages, include_reasoning=False, echo=True)

    assert turn == ("", "Well, The answer is 4.", [], "stop")


async def test_log_probabilities_have_the_tokens_texts_and_the_prompts_come_once(client, engine):
    writes(engine, "ab")

    responses = await client.deltas(sampling_params=types_pb2.SamplingParams(logprobs=1, prompt_logprobs=1), n=2)

    texts = [entry.sampled.text for response in responses if response.index == 0 for entry in response.logprobs]
    assert texts[:2] == ["a", "b"]
    [prompt] = [response.prompt_logprobs for response in responses if response.prompt_logprobs]
    assert "".join(entry.sampled.text for entry in prompt) == "user>hi\n<assistant>"


async def test_a_stream_interval_makes_fewer_messages(client, engine):
    engine.step_delay_s = 0.005  # what lies together is sent as one message, whatever the interval
    writes(engine, TEXTS["text"])
    every = await client.deltas()
    fewer = await client.deltas(text_options=pb.TextOptions(stream_interval=5))

    assert added_up(every) == added_up(fewer)
    assert len(fewer) < len(every)
