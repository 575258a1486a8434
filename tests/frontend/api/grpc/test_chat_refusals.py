"""Errors of chats over gRPC: the same text and field as over HTTP, and errors of requests that HTTP cannot express."""

import pytest

from tests.frontend.api.grpc.chat_client import HTTP_TOOLS, TOOLS, USER
from tetrad.v1 import inference_pb2 as pb
from tetrad.v1 import types_pb2

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
            {"kv_transfer_params_json": '{"do_remote_decode": true}'},
            "kv_transfer_params.do_remote_decode needs an engine core with --kv-role producer or both; there is none.",
            "kv_transfer_params",
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
