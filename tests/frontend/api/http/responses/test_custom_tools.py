"""Custom tools: tools whose input is a text, also one that a grammar or a regular expression describes."""

import json
import re

import pytest

from tests.frontend.api.http.responses.client import client_of
from tests.frontend.api.http.responses.test_items import TOOL, conversation
from tests.frontend.turns import FORMATS, call, writes
from tetrad.frontend.api.http.responses.custom_tools import InputText, arguments_of_input, input_of_arguments
from tetrad.frontend.api.http.responses.lark_patterns import pattern_of_lark
from tetrad.frontend.chat.conversation import NamedTool
from tetrad.services.errors import InvalidRequest

PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files."}
ASK = {"role": "user", "content": "hi"}
CODE = "print(\"Zürich 👩‍👩‍👧\")\n\tx = '\\d'\n"
CHANGES = """
start: begin change+ END  // a patch
begin: "*** Begin" LF
change: ("+" | "-") /(.*)/ LF -> line
?END.1: "*** End" LF?
%import common.LF
"""


def grammar(syntax, definition):
    return PATCH | {"format": {"type": "grammar", "syntax": syntax, "definition": definition}}


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS) as running:
        yield running


@pytest.fixture
async def client(frontend):
    async with client_of(frontend) as opened:
        yield opened


def test_the_model_sees_a_function_with_one_text():
    [tool] = conversation("hi", tools=[PATCH | {"format": {"type": "text"}}]).tools

    assert (tool.name, tool.description, tool.strict) == ("apply_patch", "Edit files.", False)
    assert tool.parameters["required"] == ["input"]
    assert tool.parameters["properties"]["input"]["type"] == "string"


@pytest.mark.parametrize("tool", [grammar("regex", "^[0-9]+ apples$"), grammar("lark", 'start: NUM " apples"\nNUM: /[0-9]+/')])
def test_a_grammar_is_the_pattern_of_a_strict_function(tool):
    [made] = conversation("hi", tools=[tool]).tools

    argument = made.parameters["properties"]["input"]
    assert made.strict
    assert re.fullmatch(argument["pattern"], "12 apples")
    assert not re.fullmatch(argument["pattern"], "no apples")
    assert tool["format"]["definition"] in argument["description"]


@pytest.mark.parametrize(("definition", "text"), [(r"[0-9]+\$", "5$"), ("^a$", "a"), ("a|b", "b"), (r"\^a", "^a")])
def test_a_regular_expression_describes_the_whole_input(definition, text):
    [made] = conversation("hi", tools=[grammar("regex", definition)]).tools

    pattern = made.parameters["properties"]["input"]["pattern"]
    assert re.search(pattern, text)
    assert not re.search(pattern, f"{text}c")
    assert not re.search(pattern, f"c{text}")


def test_a_custom_tool_can_be_chosen():
    tool = {"type": "custom", "name": "apply_patch"}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [tool]}

    assert conversation("hi", tools=[TOOL, PATCH], tool_choice=tool).tool_choice == NamedTool("apply_patch")
    assert [each.name for each in conversation("hi", tools=[TOOL, PATCH], tool_choice=allowed).tools] == ["apply_patch"]


def test_an_earlier_call_has_its_input_as_argument():
    call_ = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": CODE}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}

    messages = conversation([ASK, call_, output]).messages

    [made] = messages[1]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"input": CODE}
    assert messages[2] == {"role": "tool", "tool_call_id": "c", "name": "apply_patch", "content": "done"}


def test_a_call_that_was_cut_off_is_left_out():
    cut = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "***", "status": "incomplete"}

    assert conversation([ASK, cut, ASK]).messages == [ASK, ASK]


async def test_calls_have_their_input_in_the_answer_in_events_and_in_the_store(client, engine):
    writes(engine, call("apply_patch", input=CODE), "Done.")
    fields = {"model": "fake", "input": "hi", "tools": [PATCH, TOOL | {"strict": False}]}

    whole = await client.responses.create(**fields)
    events = [event async for event in await client.responses.create(**fields, stream=True)]
    output = {"type": "custom_tool_call_output", "call_id": whole.output[0].call_id, "output": "ok"}
    answer = await client.responses.create(**fields | {"input": [output]}, previous_response_id=whole.id)

    [item] = whole.output
    assert (item.type, item.name, item.input, item.status) == ("custom_tool_call", "apply_patch", CODE, "completed")
    assert item.id.startswith("ctc_")
    assert (whole.tools[0].type, whole.tools[0].format.type) == ("custom", "text")
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 2
    assert "".join(deltas) == CODE
    assert [event.input for event in events if event.type == "response.custom_tool_call_input.done"] == [CODE]
    added, done = (event.item for event in events if event.type.startswith("response.output_item"))
    assert (added.input, done.input) == ("", CODE)
    assert answer.output_text == "Done."


async def test_a_call_that_reaches_the_limit_has_the_input_so_far(client, engine):
    writes(engine, call("apply_patch", input=CODE))

    response = await client.responses.create(model="fake", input="hi", tools=[PATCH], max_output_tokens=64)

    [item] = response.output
    assert item.status == "incomplete"
    assert item.input
    assert CODE.startswith(item.input)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_input_is_decoded_in_any_chunks(size, ascii_only):
    arguments, decoded = json.dumps({"input": CODE}, ensure_ascii=ascii_only), InputText()

    text = "".join(decoded.feed(arguments[start : start + size]) for start in range(0, len(arguments), size))

    assert text + decoded.finish(arguments) == CODE


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"other": 1, "input": "a"}', "a"),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ("{}", "{}"),
        (r'{"input": "a\d"}', r"a\d"),
        (r'{"input": "a\ud83d b"}', "a\ufffd b"),
        ('{"input": "a\\', "a"),
        ('{"input": "a", "other": "b"}', "a"),
        (arguments_of_input(CODE), CODE),
    ],
)
def test_arguments_that_models_may_write_have_an_input(arguments, text):
    assert input_of_arguments(arguments) == text


@pytest.mark.parametrize("text", ["*** Begin\n+a\n-b\n*** End", "*** Begin\n+\n*** End\n"])
def test_a_grammar_without_recursion_is_a_pattern(text):
    assert re.fullmatch(pattern_of_lark(CHANGES, "f"), text)


@pytest.mark.parametrize(
    ("definition", "matching", "other"),
    [
        ('start: "a".."c"~2..3', "abc", "abcd"),
        ('start: "x"i{2} ["y"]', "Xxy", "xyy"),
        ('start: /a\\/b/i "." | "[\\n]"', "A/B.", "a/b,"),
        ("%import common (INT, LETTER -> L)\nstart: (L INT)+", "a1b22", "a"),
        ("start: /[^\n]+/".replace("\n", "\\n"), "a b", "a\nb"),
    ],
)
def test_elements_of_larks_notation(definition, matching, other):
    pattern = pattern_of_lark(definition, "f")

    assert re.fullmatch(pattern, matching)
    assert not re.fullmatch(pattern, other)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ('start: "(" start ")" | "x"', "the rule 'start' is recursive"),
        ('start: "a"\n%ignore " "', "'%ignore' is not supported"),
        ("start: other", "there is no rule 'other'"),
        ('other: "a"', "there is no rule 'start'"),
        ('start: ("a"', "has a '(' without ')'"),
        ('start: "a" )', "')' is unexpected in the rule 'start'"),
        ('start: "a"..B', "a range ends with 'B'"),
        ('start: "\\u00"', "has an escape that JSON does not have"),
        ("%import common.NONE", "%import knows no common.NONE"),
        (f"start: {'(' * 2000}", "nested too deeply"),
        ("\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(20)) + '\nr20: "a"\nstart: r0', "is longer than 32768 characters"),
    ],
)
def test_a_grammar_that_has_no_pattern_is_refused(definition, reason):
    with pytest.raises(InvalidRequest, match=re.escape(reason)) as raised:
        pattern_of_lark(definition, "tools.0.format.definition")

    assert raised.value.field == "tools.0.format.definition"


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        (PATCH | {"name": None}, "tools.0.name"),
        (PATCH | {"parameters": {}}, "tools.0.parameters"),
        (PATCH | {"strict": True}, "tools.0.strict"),
        (PATCH | {"format": {"type": "grammar", "syntax": "lark"}}, "tools.0.format.definition"),
        (PATCH | {"format": {"type": "grammar", "definition": "a"}}, "tools.0.format.syntax"),
        (TOOL | {"format": {"type": "text"}}, "tools.0.format"),
    ],
)
def test_a_tool_that_cannot_be_is_named(tool, field):
    with pytest.raises(InvalidRequest) as raised:
        conversation("hi", tools=[tool])

    assert raised.value.field == field
