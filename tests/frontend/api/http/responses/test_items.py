"""Conversion of OpenAI's items and tools to conversations, and refusals that name the item."""

import pytest
from pydantic import ValidationError

from tests.frontend.turns import WEATHER
from tetrad.frontend.api.http.responses.bodies import InputTokensRequest, ResponsesRequest
from tetrad.frontend.api.http.responses.conversations import conversation_of, json_format
from tetrad.frontend.api.http.responses.items import listed_items, response_of_item
from tetrad.frontend.api.http.schemas.errors import from_validation
from tetrad.frontend.chat.conversation import NamedTool
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

HEX = "0123456789abcdef" * 2


def message(role, content):
    return {"role": role, "content": content}


def call(call_id="c1", **fields):
    return {"type": "function_call", "call_id": call_id, "name": "get_weather", "arguments": '{"city": "Paris"}', **fields}


def output(value, call_id="c1"):
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def reasoning(text):
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def said(text, **fields):
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part], **fields}


def template_call(call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def tool_message(content, call_id="c1"):
    return {"role": "tool", "tool_call_id": call_id, "name": "get_weather", "content": content}


def conversation(input_, history=(), **fields):
    body = InputTokensRequest(input=input_, **fields)
    return conversation_of(body, body.input, history)


Q = message("user", "q")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("hi", [message("user", "hi")]),
        ([message("user", "hi")], [message("user", "hi")]),
        (
            [message("user", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}])],
            [message("user", "a\nb")],
        ),
        ([message("system", "s"), message("developer", "d"), Q], [message("system", "s"), message("developer", "d"), Q]),
        ([Q, said("a"), message("user", "r")], [Q, message("assistant", "a"), message("user", "r")]),
        (
            [Q, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, Q],
            [Q, message("assistant", "no"), Q],
        ),
        ([Q, call(), output("rain")], [Q, {**message("assistant", ""), "tool_calls": [template_call()]}, tool_message("rain")]),
        (
            [Q, reasoning("hm"), said("Let me look."), call("c1"), call("c2"), output("a", "c2"), output("b", "c1")],
            [
                Q,
                {
                    **message("assistant", "Let me look."),
                    "reasoning_content": "hm",
                    "tool_calls": [template_call("c1"), template_call("c2")],
                },
                tool_message("a", "c2"),
                tool_message("b", "c1"),
            ],
        ),
        (
            [Q, reasoning("hm"), call(), output([{"type": "input_text", "text": "rain"}]), reasoning("so"), said("Rain."), Q],
            [
                Q,
                {**message("assistant", ""), "reasoning_content": "hm", "tool_calls": [template_call()]},
                tool_message("rain"),
                {**message("assistant", "Rain."), "reasoning_content": "so"},
                Q,
            ],
        ),
        (
            [Q, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, said("a"), Q],
            [Q, {**message("assistant", "a"), "reasoning_content": "s"}, Q],
        ),
        ([Q, said("a"), said("b"), Q], [Q, message("assistant", "a"), message("assistant", "b"), Q]),
        (
            [Q, call(), said("a"), Q],
            [Q, {**message("assistant", ""), "tool_calls": [template_call()]}, message("assistant", "a"), Q],
        ),
    ],
)
def test_items_become_the_templates_messages(items, expected):
    assert conversation(items).messages == expected


def test_instructions_come_first_then_what_was_said_before():
    history = [message("user", "q") | {"type": "message"}, said("a"), call(), call("c2", status="incomplete")]

    found = conversation([output("rain")], history, instructions="be brief")

    assert [each["role"] for each in found.messages] == ["system", "user", "assistant", "tool"]
    assert found.messages[2]["tool_calls"] == [template_call()]


def test_a_call_that_was_cut_off_is_left_out_whether_it_is_stored_or_sent_again():
    """Templates need the arguments of all calls as valid JSON."""
    said_before = [Q, said("a"), call("c1", status="incomplete", arguments='{"ci')]

    again = conversation([*said_before, Q])

    assert again.messages == conversation([Q], [item | {"type": item.get("type", "message")} for item in said_before]).messages
    assert again.messages == [Q, message("assistant", "a"), Q]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"city": "Paris", "days": [1, 2', '{"city": "Paris", "days": [1, 2]}'),
        ('{"city": }', "{}"),
        ("Zürich", "{}"),
        ('{"city":  "Zürich"}', '{"city":  "Zürich"}'),
        ("", ""),
        ("[1]", "[1]"),
    ],
)
def test_of_arguments_that_are_no_json_templates_get_what_is_complete(written, arguments):
    """Models may write such calls; clients answer them with an error, so that the model tries again."""
    found = conversation([Q, call(arguments=written), output("That is no JSON.")])

    [template_call] = found.messages[1]["tool_calls"]
    assert template_call["function"]["arguments"] == arguments


@pytest.mark.parametrize(("status", "continued"), [("in_progress", True), ("incomplete", True), ("completed", False)])
def test_a_last_message_of_the_assistant_that_is_not_complete_is_continued(status, continued):
    found = conversation([Q, said("The answer is", status=status)])

    assert (found.continue_final_message, found.add_generation_prompt) == (continued, not continued)


TOOL = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": WEATHER, "strict": True}
TIME = {"type": "function", "name": "get_time"}


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        (None, "auto", ["get_weather", "get_time"]),
        ("none", "none", ["get_weather", "get_time"]),
        ("required", "required", ["get_weather", "get_time"]),
        ({"type": "function", "name": "get_time"}, NamedTool("get_time"), ["get_weather", "get_time"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
            "required",
            ["get_time"],
        ),
        ({"type": "allowed_tools", "tools": 2 * [{"type": "function", "name": "get_time"}]}, "auto", ["get_time"]),
    ],
)
def test_tools_and_their_choice(choice, expected, names):
    found = conversation("hi", tools=[TOOL, TIME], tool_choice=choice, parallel_tool_calls=False)

    assert (found.tool_choice, [tool.name for tool in found.tools], found.parallel_tool_calls) == (expected, names, False)


def test_a_tool_keeps_its_schema():
    assert conversation("hi", tools=[TOOL, TIME]).tools == [
        Tool("get_weather", "Weather.", WEATHER, strict=True),
        Tool("get_time"),
    ]


@pytest.mark.parametrize(
    ("reasoning_config", "kwargs"),
    [
        (None, None),
        ({"summary": "auto"}, None),
        ({"effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}),
        ({"effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
    ],
)
def test_the_effort_reaches_the_template(reasoning_config, kwargs):
    assert conversation("hi", reasoning=reasoning_config).chat_template_kwargs == kwargs


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutputsParams(json_object=True)),
        ({"type": "json_schema", "name": "x", "schema": WEATHER}, StructuredOutputsParams(json=WEATHER)),
    ],
)
def test_the_format_becomes_a_constraint(form, expected):
    body = ResponsesRequest(input="hi", text={"format": form})

    assert json_format(body) == expected


@pytest.mark.parametrize(
    ("choice", "is_constraint"),
    [("auto", True), ("none", True), ("required", False), ({"type": "function", "name": "get_weather"}, False)],
)
def test_the_format_is_one_of_text_and_no_constraint_of_forced_calls(choice, is_constraint):
    tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER}]
    body = ResponsesRequest(input="hi", tools=tools, tool_choice=choice, text={"format": {"type": "json_object"}})

    assert (json_format(body) is not None) == is_constraint


FILE = {"type": "input_file", "file_id": "f"}


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([message("user", [FILE])], "input.0.content.0.type"),
        ([Q, message("user", [{"type": "input_text"}])], "input.1.content.0.text"),
        ([message("tool", "x")], "input.0.role"),
        ([{"type": "message", "content": "x"}], "input.0.role"),
        ([{"type": "message", "role": "user"}], "input.0.content"),
        ([{"type": "web_search_call", "id": "x"}], "input.0.type"),
        ([{}], "input.0.type"),
        ([Q, {"type": "function_call", "name": "f", "arguments": "{}"}], "input.1.call_id"),
        ([Q, {"type": "function_call", "call_id": "c", "name": "f"}], "input.1.arguments"),
        ([Q, {"type": "function_call", "call_id": "c", "arguments": "{}"}], "input.1.name"),
        ([output("x")], "input.0.call_id"),
        ([Q, call(), {"type": "function_call_output", "call_id": "c1"}], "input.2.output"),
        ([Q, call(), output([FILE])], "input.2.output.0.type"),
    ],
)
def test_an_item_that_cannot_be_is_named(items, field):
    with pytest.raises(InvalidRequest) as raised:
        conversation(items)

    assert raised.value.field == field
    assert raised.value.message.startswith(field.removesuffix(".type"))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools.1.name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [TIME]}}, "tool_choice"),
    ],
)
def test_tools_that_cannot_be_are_named(fields, field):
    with pytest.raises(InvalidRequest) as raised:
        conversation("hi", **fields)

    assert raised.value.field == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": 1}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": 1}]}, "input.0.role"),
        ({"input": [message("user", [{"text": "x"}])]}, "input.0.content.0.type"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "top_logprobs": 21}, "top_logprobs"),
        ({"input": "x", "truncation": "some"}, "truncation"),
        ({"input": "x", "tool_choice": "perhaps"}, "tool_choice"),
        ({"input": "x", "reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "stream_options": {}}, "Stream options"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": "x", "metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"input": "x", "metadata": {"key": "v" * 513}}, "metadata.key"),
    ],
)
def test_bodies_of_wrong_form_are_refused(body, field):
    with pytest.raises(ValidationError) as raised:
        ResponsesRequest.model_validate(body)

    assert from_validation(raised.value).message.startswith(field)


def test_listed_items_have_ids_that_lead_back_to_their_response():
    body = InputTokensRequest(input=[Q, said("a"), call(), output("rain"), {"type": "reasoning"}])

    listed = listed_items(body.input, f"resp_{HEX}")

    assert [item["type"] for item in listed] == ["message", "message", "function_call", "function_call_output", "reasoning"]
    assert listed[0]["content"] == [{"type": "input_text", "text": "q"}]
    assert (listed[1]["id"], listed[3]["output"], listed[4]["summary"]) == ("msg_1", "rain", [])
    assert all(item["status"] == "completed" for item in listed)
    assert response_of_item(listed[0]["id"]) == f"resp_{HEX}"
    assert response_of_item("msg_1") is None


AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


@pytest.mark.parametrize(
    ("part", "modality", "source"),
    [
        (AUDIO, "audio", {"base64": "AAAA", "media_type": "audio/wav"}),
        ({"type": "audio_url", "audio_url": {"url": "data:,a", "uuid": "mine"}}, "audio", {"url": "data:,a", "uuid": "mine"}),
        ({"type": "video_url", "video_url": "data:,a"}, "video", {"url": "data:,a"}),
        ({"type": "input_image", "image_url": "data:,a"}, "image", {"url": "data:,a"}),
    ],
)
def test_media_are_parts_of_messages_and_those_of_outputs_follow_them(part, modality, source):
    text = {"type": "input_text", "text": "what?"}

    found = conversation([message("user", [text, part]), call(), output([part])]).messages

    asked, _, _, shown = found
    assert [each["type"] for each in (*asked["content"], *shown["content"])] == ["text", modality, modality]
    for given in (asked["content"][1][modality], shown["content"][0][modality]):
        assert {name: getattr(given, name) for name in source} == source


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "input_audio"}, "input.0.content.0.input_audio"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "input.0.content.0.input_audio.data"),
        ({"type": "video_url"}, "input.0.content.0.video_url"),
    ],
)
def test_a_wrong_part_with_media_is_named(part, field):
    with pytest.raises(InvalidRequest) as refused:
        conversation([message("user", [part])])

    assert refused.value.field == field


def test_settings_of_files_reach_the_conversation():
    body = ResponsesRequest(input="hi", media_io_kwargs={"video": {"num_frames": 2}})

    assert conversation_of(body, body.input, ()).media_io_kwargs == {"video": {"num_frames": 2}}
