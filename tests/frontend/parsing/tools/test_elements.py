"""Calls in elements that may be nested: MiniMax M3, Kimi K3. Row: output, content, calls."""

import json

import pytest

from tests.frontend.parsing.tools.reading import check_reading, parser_of, read, shown
from tetrad.frontend.parsing.elements.interface import Tool

MARK = "]<]minimax[>["


def element(name, *inner):
    return f"{MARK}<{name}>{''.join(inner)}{MARK}</{name}>"


def invoke(*elements, name="f"):
    return f'{MARK}<invoke name="{name}">{"".join(elements)}{MARK}</invoke>'


def section(*calls):
    return f"{MARK}<tool_call>\n" + "\n".join(calls) + f"\n{MARK}</tool_call>"


MINIMAX_M3 = {
    "no call": ("Hello ]<]mini", "Hello ]<]mini", []),
    "several calls": (f"a {section(invoke(), invoke(name='g'))} b", "a  b", [("f", "{}"), ("g", "{}")]),
    "values by the schema": (
        section(invoke(element("text", "5"), element("count", "5"), element("options", '{"a": 1}'), element("other", "5"))),
        "",
        [("f", '{"text": "5", "count": 5, "options": {"a": 1}, "other": "5"}')],
    ),
    "newlines are the value's": (invoke(element("text", "\na\n")), "", [("f", '{"text": "\\na\\n"}')]),
    "a list": (
        invoke(element("items", element("item", "x"), element("item", "y"))),
        "",
        [("f", '{"items": ["x", "y"]}')],
    ),
    "an object": (
        invoke(element("options", "\n", element("a", "1"), element("b", element("item", "2")))),
        "",
        [("f", '{"options": {"a": "1", "b": ["2"]}}')],
    ),
    "an empty list and an empty object": (
        invoke(element("items"), element("options")),
        "",
        [("f", '{"items": [], "options": {}}')],
    ),
    "the same name within": (
        invoke(element("options", element("options", element("a", "1")))),
        "",
        [("f", '{"options": {"options": {"a": "1"}}}')],
    ),
    "several members with one name": (
        invoke(element("options", element("a", "1"), element("a", "2"))),
        "",
        [("f", '{"options": {"a": ["1", "2"]}}')],
    ),
    "text beside members": (
        invoke(element("options", "before ", element("$text", "x"), "behind")),
        "",
        [("f", '{"options": {"$text": "x", "$$text": "before behind"}}')],
    ),
    "crossed tags": (
        invoke(element("other", f"{MARK}<a>{MARK}<b>{MARK}</a>")),
        "",
        [("f", json.dumps({"other": f"{MARK}<a>{MARK}<b>{MARK}</a>"}))],
    ),
    "text instead of an element": (f'{MARK}<invoke name="f">what?', "what?", [("f", "{}")]),
    "an empty section": (section(), section(), []),
    "cut in a string": (f'{MARK}<invoke name="f">{MARK}<text>ab]<', "", [("f", '{"text": "ab]<')]),
    "cut in a list": (f'{MARK}<invoke name="f">{element("text", "a")}{MARK}<items>', "", [("f", '{"text": "a"')]),
    "cut between elements": (f'{MARK}<invoke name="f">{element("text", "a")}]<]', "]<]", [("f", '{"text": "a"')]),
}


def argument(key, kind, value):
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


def call(*arguments, name="f"):
    return f'<|open|>call tool="{name}" index="1"<|sep|>{"".join(arguments)}<|close|>call<|sep|>'


def tools(*calls):
    return f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>"


KIMI_K3 = {
    "no call": ("Hello <|open|>", "Hello <|open|>", []),
    "several calls": ("a " + tools(call(), call(name="g")), "a ", [("f", "{}"), ("g", "{}")]),
    "the end of the message": (tools(call()) + "<|close|>message<|sep|>", "", [("f", "{}")]),
    "types by the model": (
        tools(call(argument("count", "string", "5"), argument("text", "object", '{"a": 1}'), argument("x", "null", "null"))),
        "",
        [("f", '{"count": "5", "text": {"a": 1}, "x": null}')],
    ),
    "no type": (
        tools(call('<|open|>argument key="count"<|sep|>5<|close|>argument<|sep|>')),
        "",
        [("f", '{"count": 5}')],
    ),
    "escapes in a key": (tools(call(argument("a&quot;&amp;lt;", "string", "x"))), "", [("f", '{"a\\"&lt;": "x"}')]),
    "an end mark in a value": (
        tools(call(argument("text", "string", "a<|close|>argument<|sep|>b"))),
        "",
        [("f", '{"text": "a<|close|>argument<|sep|>b"}')],
    ),
    "no name": (tools('<|open|>call index="1"<|sep|>'), tools('<|open|>call index="1"<|sep|>'), []),
    "no key": (
        '<|open|>call tool="f"<|sep|><|open|>argument type="string"<|sep|>a',
        '<|open|>argument type="string"<|sep|>a',
        [("f", "{}")],
    ),
    "cut in a value": (
        '<|open|>call tool="f"<|sep|><|open|>argument key="text" type="string"<|sep|>a<|close|>',
        "",
        [("f", '{"text": "a<|close|>')],
    ),
}
TABLES = {"minimax_m3": MINIMAX_M3, "kimi_k3": KIMI_K3}
ROWS = [pytest.param(name, *row, id=f"{name}: {title}") for name, table in TABLES.items() for title, row in table.items()]


@pytest.mark.parametrize(("format_name", "text", "content", "calls"), ROWS)
def test_output_means_the_same_in_every_chunking(format_name, text, content, calls):
    check_reading(format_name, text, content, calls)


def test_members_have_the_types_of_the_definitions_that_the_schema_refers_to():
    place = {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {
            "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
            "places": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
            "scores": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        "$defs": {"Place": place},
    }
    inner = element("city", "7") + element("zip", "7")
    output = invoke(element("place", inner), element("places", element("p", inner)), element("scores", element("a", "1.5")))

    turn = read(parser_of("minimax_m3", [Tool("f", parameters=schema)]), [output])

    values = {"place": {"city": "7", "zip": 7}, "places": [{"city": "7", "zip": 7}], "scores": {"a": 1.5}}
    assert [(name, json.loads(arguments)) for name, arguments in shown(turn)[1]] == [("f", values)]
