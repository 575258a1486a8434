"""Conversion of Anthropic's messages to conversations, and refusals that name the block."""

import pytest
from pydantic import ValidationError

from tests.frontend.turns import WEATHER
from tetrad.frontend.api.http.messages.blocks import conversation_of
from tetrad.frontend.api.http.messages.bodies import CountTokensRequest, MessagesRequest
from tetrad.frontend.api.http.schemas.errors import from_validation
from tetrad.frontend.chat.conversation import NamedTool
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.services.errors import InvalidRequest

TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": WEATHER}


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(value):
    return {"type": "text", "text": value}


def conversation(*messages, **fields):
    return conversation_of(CountTokensRequest(messages=list(messages), **fields))


CALL = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Zürich"}}
OPENAI_CALL = {"id": "t1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
        ([user(text("a"), text("b"))], [{"role": "user", "content": "a\nb"}]),
        ([user(text("a")), user(text("b"))], [{"role": "user", "content": "a\nb"}]),
        (
            [user(text("a")), {"role": "system", "content": "be brief"}, user(text("b"))],
            [{"role": "user", "content": "a"}, {"role": "system", "content": "be brief"}, {"role": "user", "content": "b"}],
        ),
        (
            [
                user(text("q")),
                assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("Let me look."), CALL),
                user({"type": "tool_result", "tool_use_id": "t1", "content": "rain"}, text("and?")),
            ],
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "Let me look.", "reasoning_content": "hm", "tool_calls": [OPENAI_CALL]},
                {"role": "tool", "tool_call_id": "t1", "name": "get_weather", "content": "rain"},
                {"role": "user", "content": "and?"},
            ],
        ),
        (
            [
                user(text("q")),
                assistant(CALL, CALL | {"id": "t2"}),
                user(
                    {"type": "tool_result", "tool_use_id": "t1", "content": [text("a"), text("b")]},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                ),
            ],
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "tool_calls": [OPENAI_CALL, OPENAI_CALL | {"id": "t2"}]},
                {"role": "tool", "tool_call_id": "t1", "name": "get_weather", "content": "a\nb"},
                {"role": "tool", "tool_call_id": "t2", "name": "get_weather", "content": "The tool failed."},
            ],
        ),
        (
            [user(text("q")), assistant({"type": "redacted_thinking", "data": "x"}, text("a")), user(text("b"))],
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
        ),
        (
            [user(text("q")), assistant(text("a")), assistant(CALL), user(text("b"))],
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "a", "tool_calls": [OPENAI_CALL]},
                {"role": "user", "content": "b"},
            ],
        ),
    ],
)
def test_messages_become_the_templates_messages(messages, expected):
    assert conversation(*messages).messages == expected


@pytest.mark.parametrize("system", ["be\nbrief", [text("be"), text("brief")]])
def test_the_system_prompt_comes_first(system):
    assert conversation(user(text("hi")), system=system).messages[0] == {"role": "system", "content": "be\nbrief"}


@pytest.mark.parametrize("system", ["", [], [text("")]])
def test_an_empty_system_prompt_is_none(system):
    """An empty message would replace the default prompt that some templates have."""
    assert conversation(user(text("hi")), system=system).messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("system", [[text("be")], []])
def test_a_header_that_differs_between_requests_is_no_part_of_the_prompt(system):
    header = text("x-anthropic-billing-header: cc_version=2.1; cch=5f3a1;")

    found = conversation({"role": "system", "content": [header]}, user(text("hi")), system=[header, *system])

    assert found.messages == conversation(user(text("hi")), system=system or None).messages


@pytest.mark.parametrize(
    ("last", "continued"), [(assistant(text("The answer is (")), True), (assistant(CALL), False), (user(text("hi")), False)]
)
def test_a_last_text_of_the_assistant_is_continued(last, continued):
    found = conversation(user(text("q")), last)

    assert (found.continue_final_message, found.add_generation_prompt) == (continued, not continued)


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "any"}, "required", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "get_weather"}, NamedTool("get_weather"), True),
        ({"type": "none"}, "none", True),
    ],
)
def test_tools_and_their_choice(choice, expected, parallel):
    found = conversation(user(text("hi")), tools=[TOOL], tool_choice=choice)

    assert found.tools == [Tool("get_weather", "Weather.", WEATHER)]
    assert (found.tool_choice, found.parallel_tool_calls) == (expected, parallel)


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
    ],
)
def test_thinking_reaches_the_template(fields, kwargs):
    assert conversation(user(text("hi")), **fields).chat_template_kwargs == kwargs


IMAGE = {"type": "image", "source": {"type": "file", "file_id": "f"}}
RESULT = {"type": "tool_result", "tool_use_id": "t9", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([user(IMAGE)], "messages.0.content.0"),
        ([user(text("a")), user(text("b"), {"type": "document"})], "messages.1.content.1"),
        ([user({"type": "text"})], "messages.0.content.0.text"),
        ([user(RESULT)], "messages.0.content.0"),
        ([user(text("q")), assistant(CALL), user(RESULT | {"tool_use_id": "t1", "content": [IMAGE]})], "messages.2.content.0"),
        ([user(text("q")), assistant({"type": "tool_use", "name": "f", "input": {}})], "messages.1.content.0.id"),
        ([user(text("q")), assistant({"type": "thinking"})], "messages.1.content.0.thinking"),
        ([user(CALL)], "messages.0.content.0"),
        ([user(text("q")), assistant(RESULT)], "messages.1.content.0"),
    ],
)
def test_a_block_that_cannot_be_is_named(messages, field):
    with pytest.raises(InvalidRequest) as raised:
        conversation(*messages)

    assert raised.value.message.startswith(field)
    assert raised.value.field.startswith(field)


SEARCH_RESULT = {"type": "search_result", "source": "https://a.example", "title": "A", "content": [text("a")]}
FAILED_SEARCH = {"type": "web_search_tool_result", "tool_use_id": "t1", "content": {"type": "web_search_tool_result_error"}}


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([user(SEARCH_RESULT)], "messages.0.content.0"),
        (
            [user(text("q")), assistant(CALL), user(RESULT | {"tool_use_id": "t1", "content": [SEARCH_RESULT]})],
            "messages.2.content.0.content.0",
        ),
        ([user(text("q")), assistant(CALL, FAILED_SEARCH)], "messages.1.content.1"),
    ],
)
def test_a_block_of_another_type_is_refused_for_its_type_whatever_its_fields_are(messages, path):
    with pytest.raises(InvalidRequest) as raised:
        conversation(*messages)

    kind = "web_search_tool_result" if path.endswith("content.1") else "search_result"
    assert raised.value.message == f"{path}.type: blocks of type {kind!r} are not supported here."


HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 1}, "messages"),
        ({"messages": HI}, "max_tokens"),
        ({"messages": [], "max_tokens": 1}, "messages"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        ({"messages": HI, "max_tokens": "many"}, "max_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}], "max_tokens": 1}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 1}], "max_tokens": 1}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}], "max_tokens": 1}, "messages.0.content.0.type"),
        ({"messages": HI, "max_tokens": 1, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0"),
        ({"messages": HI, "max_tokens": 1, "tools": [{"name": "f"}]}, "tools.0"),
        ({"messages": HI, "max_tokens": 1, "tools": [TOOL | {"name": "a b"}]}, "tools.0.name"),
        ({"messages": HI, "max_tokens": 1, "tools": [TOOL, TOOL]}, "tools"),
        ({"messages": HI, "max_tokens": 1, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"messages": HI, "max_tokens": 1, "tool_choice": {"type": "x"}, "tools": [TOOL]}, "tool_choice.type"),
        ({"messages": HI, "max_tokens": 1, "tool_choice": {"type": "tool"}, "tools": [TOOL]}, "tool_choice"),
        ({"messages": HI, "max_tokens": 9, "thinking": {"type": "enabled"}}, "thinking"),
        ({"messages": HI, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        (
            {"messages": HI, "max_tokens": 9, "output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema",
        ),
    ],
)
def test_bodies_of_wrong_form_are_refused(body, field):
    with pytest.raises(ValidationError) as raised:
        MessagesRequest.model_validate(body)

    assert from_validation(raised.value).message.startswith(field)
