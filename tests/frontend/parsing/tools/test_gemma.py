"""Calls with bare keys: Gemma 4 and FunctionGemma. Row: output, content, calls. In the rows, ~ is the mark around strings."""

import pytest

from tests.frontend.parsing.tools.reading import check_reading, parser_of

MARKS = {
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
}
CALLS = {
    "no call": ("Hello call:f{}", "Hello call:f{}", []),
    "no arguments": ("(call:f{})", "", [("f", "{}")]),
    "several calls": ("a(call:f{})(call:g{count:1})b", "ab", [("f", "{}"), ("g", '{"count": 1}')]),
    "every kind of value": (
        "(call:f{a:~x~,b:-1.5,c:true,d:null,e:[1,[~y~]],g:{k:{}}})",
        "",
        [("f", '{"a": "x", "b": -1.5, "c": true, "d": null, "e": [1, ["y"]], "g": {"k": {}}}')],
    ),
    "quotes and brackets in a string": ('(call:f{text:~a "}]\\,\n漢 😀~})', "", [("f", '{"text": "a \\"}]\\\\,\\n漢 😀"}')]),
    "an empty string": ("(call:f{text:~~})", "", [("f", '{"text": ""}')]),
    "quoted keys": ('(call:f{~a b~:1,"c":2})', "", [("f", '{"a b": 1, "c": 2}')]),
    "JSON strings": ('(call:f{text:"a\\n,b"})', "", [("f", '{"text": "a\\n,b"}')]),
    "a string without marks": ("(call:f{text:New York,unit:c})", "", [("f", '{"text": "New York", "unit": "c"}')]),
    "words of Python": ("(call:f{flag:True,maybe:None})", "", [("f", '{"flag": true, "maybe": null}')]),
    "white space": ("( call:f{ count : 1 , items : [ 1 , 2 ] } )", "", [("f", '{"count": 1, "items": [1, 2]}')]),
    "a comma at the end": ("(call:f{items:[1,],})", "", [("f", '{"items": [1]}')]),
    "no end mark": ("(call:f{count:1}", "", [("f", '{"count": 1}')]),
    "no name": ("(call:{})", "(call:{})", []),
    "a bracket that closes nothing": ("(call:f{count:1]})", "]})", [("f", '{"count": 1')]),
    "cut in the name": ("(call:f", "(call:f", []),
    "cut in a key": ("(call:f{cou", "", [("f", "{")]),
    "cut in a string": ("(call:f{text:~ab", "", [("f", '{"text": "ab')]),
    "cut in a number": ("(call:f{count:12", "", [("f", '{"count": 12')]),
    "cut between members": ("(call:f{count:1,", "", [("f", '{"count": 1, ')]),
}
ROWS = [pytest.param(name, *row, id=f"{name}: {title}") for name, marks in MARKS.items() for title, row in CALLS.items()]


def marked(name, text):
    """Return a text of a row with the marks of a format."""
    opening, closing, quote = MARKS[name]
    return text.replace("(", opening).replace(")", closing).replace("~", quote)


@pytest.mark.parametrize(("format_name", "text", "content", "calls"), ROWS)
def test_output_means_the_same_in_every_chunking(format_name, text, content, calls):
    check_reading(format_name, marked(format_name, text), marked(format_name, content), calls)


def test_strings_stream_while_they_are_written():
    parser = parser_of("gemma4")
    parser.feed('<|tool_call>call:f{text:<|"|>')

    pieces = [[piece.text for piece in parser.feed(chunk)] for chunk in ('a"', "b", "<", "c")]

    assert pieces == [['a\\"'], ["b"], [], ["<c"]]
