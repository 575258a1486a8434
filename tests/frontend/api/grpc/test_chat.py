"""Chats over gRPC: all features of HTTP's chats, with the same answers and the same refusals."""

import json

import grpc
import pytest

from tests.frontend.turns import FORMATS, TEXTS, WEATHER, call, writes
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import inference_pb2 as pb
from tetrad.v1 import inference_pb2_grpc, types_pb2

TOOLS = [
    pb.Tool(name="get_weather", description="Weather of a city.", parameters_json=json.dumps(WEATHER)),
    pb.Tool(name="get_time"),
]
HTTP_TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]
USER = pb.ChatMessage(role="user", content="hi")
FINISH = {pb.CHAT_FINISH_REASON_STOP: "stop", pb.CHAT_FINISH_REASON_TOOL_CALLS: "tool_calls"}


class Client:
    """Asks one frontend over both APIs."""

    def __init__(self, frontend, channel):
        self.http = frontend.http
        self.stub = inference_pb2_grpc.InferenceServiceStub(channel)

    async def deltas(self, **fields):
        request = pb.ChatRequest(**{"messages": [USER]} | fields)
        return [response async for response in self.stub.Chat(request)]

    async def ask(self, **fields):
        return added_up(await self.deltas(**fields))

    async def refusal(self, **fields):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.deltas(**fields)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        found = from_rpc_error(caught.value)
        return found.message, found.field

    async def ask_http(self, **fields):
        body = {"messages": [{"role": "user", "content": "hi"}], **fields}
        return (await self.http.post("/v1/chat/completions", json=body)).json()


@pytest.fixture
async def client(serve_frontend):
    async with (
        serve_frontend(listen="127.0.0.1:0", **FORMATS) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        yield Client(frontend, channel)


def added_up(responses, index=0):
    """Return what the messages of a turn add up to, as HTTP would show it."""
    reasoning, content, calls, reasons = "", "", [], []
    for response in responses:
        if response.index != index:
            continue
        reasoning += response.reasoning
        content += response.content
        for delta in response.tool_calls:
            if delta.id:
                assert delta.index == len(calls)
                calls.append(pb.ToolCall(id=delta.id, name=delta.name))
            else:
                assert not delta.name
            calls[delta.index].arguments_json += delta.arguments_json
        reasons += [response.finish_reason] if response.finish_reason else []
    assert len(reasons) == 1
    return reasoning, content, calls, FINISH[reasons[0]]


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


NAMED = pb.ToolChoice(function="f")
ASSISTANT = {"role": "assistant", "content": ""}
HTTP_USER = {"role": "user", "content": "hi"}

# What a request says wrongly -> the fields of the body that say the same.
REFUSED = {
    "choice without tools": ({"tool_choice": pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_AUTO)}, {"tool_choice": "auto"}),
    "unknown function": (
        {"tools": TOOLS, "tool_choice": NAMED},
        {"tools": HTTP_TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    "unknown mode": (
        {"tools": TOOLS, "tool_choice": pb.ToolChoice(mode=7)},
        {"tools": HTTP_TOOLS, "tool_choice": "7"},
    ),
    "unknown allowed function": (
        {"tools": TOOLS, "tool_choice": pb.ToolChoice(allowed_functions=["f"])},
        {
            "tools": HTTP_TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
        },
    ),
    "two forms": (
        {
            "tools": TOOLS,
            "tool_choice": pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED),
            "sampling_params": types_pb2.SamplingParams(structured_outputs=types_pb2.StructuredOutputs(regex="a")),
        },
        {"tools": HTTP_TOOLS, "tool_choice": "required", "structured_outputs": {"regex": "a"}},
    ),
    "tool without a name": ({"tools": [pb.Tool()]}, {"tools": [{"function": {"description": "", "strict": False}}]}),
    "name of a tool": ({"tools": [pb.Tool(name="a b")]}, {"tools": [{"function": {"name": "a b"}}]}),
    "parameters": (
        {"tools": [pb.Tool(name="f", parameters_json="[1]")]},
        {"tools": [{"function": {"name": "f", "parameters": [1]}}]},
    ),
    "documents": ({"documents_json": '{"a": 1}'}, {"documents": {"a": 1}}),
    "template variables": ({"chat_template_kwargs_json": "[]"}, {"chat_template_kwargs": []}),
    "effort": ({"reasoning_effort": "huge"}, {"reasoning_effort": "huge"}),
    "call without a name": (
        {"messages": [USER, pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="1")])]},
        {"messages": [HTTP_USER, ASSISTANT | {"tool_calls": [{"id": "1", "function": {}}]}]},
    ),
    "part of no kind": (
        {"messages": [pb.ChatMessage(role="user", content_parts=[pb.ContentPart()])]},
        {"messages": [{"role": "user", "content": [{}]}]},
    ),
    "no allowed ids": (
        {"text_options": pb.TextOptions(allowed_token_ids=pb.TokenIdList())},
        {"allowed_token_ids": []},
    ),
    "bad words": ({"text_options": pb.TextOptions(bad_words=[""])}, {"bad_words": [""]}),
    "truncation": ({"truncate_prompt_tokens": 0}, {"truncate_prompt_tokens": 0}),
    "truncation side": ({"truncation_side": "up"}, {"truncation_side": "up"}),
    "request id": ({"request_id": "a b"}, {"request_id": "a b"}),
    "interval": ({"text_options": pb.TextOptions(stream_interval=0)}, {"stream": True, "stream_interval": 0}),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_http_refuses_is_refused_in_the_same_words(client, engine, case):
    fields, body = REFUSED[case]

    message, field = await client.refusal(**fields)

    error = (await client.ask_http(**body))["error"]
    assert (message, field) == (error["message"], error["param"])
    assert not engine.requests


@pytest.mark.parametrize(
    ("fields", "message", "field"),
    [
        (
            {"messages": [pb.ChatMessage(role="user", content_parts=[pb.ContentPart(image=pb.MediaPart(url="data:,"))])]},
            "This server does not support image.",
            "image",
        ),
        (
            {"kv_transfer_params_json": "{}"},
            "This server does not support kv_transfer_params_json.",
            "kv_transfer_params_json",
        ),
        (
            {"messages": [pb.ChatMessage(role="user", content="a", content_parts=[pb.ContentPart(text="b")])]},
            "messages[0] has both content and content_parts; give one of them.",
            "messages[0].content_parts",
        ),
        (
            {"tools": TOOLS, "tool_choice": pb.ToolChoice(function="get_time", allowed_functions=["get_time"])},
            "tool_choice has both function and allowed_functions; give one of them.",
            "tool_choice",
        ),
        (
            {"tools": [pb.Tool(name="f", parameters_json="{")]},
            "tools[0].parameters_json is not valid JSON: EOF while parsing an object at line 1 column 1.",
            "tools[0].parameters_json",
        ),
        (
            {"documents_json": '["\\ud800"]'},
            "documents_json is not valid JSON: unexpected end of hex escape at line 1 column 9.",
            "documents_json",
        ),
        (
            {"sampling_params": types_pb2.SamplingParams(bad_words_token_ids=[types_pb2.TokenIds(ids=b"1234")])},
            "sampling_params.bad_words_token_ids is not taken here: give the words as text_options.bad_words.",
            "bad_words_token_ids",
        ),
        (
            {
                "sampling_params": types_pb2.SamplingParams(allowed_token_ids=[1]),
                "text_options": pb.TextOptions(allowed_token_ids=pb.TokenIdList(ids=[1])),
            },
            "allowed_token_ids stands in both sampling_params and text_options; give it once.",
            "allowed_token_ids",
        ),
    ],
)
async def test_what_only_grpc_can_say_wrongly(client, engine, fields, message, field):
    assert await client.refusal(**fields) == (message, field)
    assert not engine.requests


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
