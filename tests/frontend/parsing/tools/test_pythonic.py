"""Calls in Python: Llama 3.2 and 4, LFM2, Olmo 3. Row: output, content, calls."""

import pytest

from tests.frontend.parsing.tools.reading import check_reading

PYTHONIC = {
    "no call": ("Hello [1]", "Hello [1]", []),
    "one call": ("[f(count=1)]", "", [("f", '{"count": 1}')]),
    "several calls": ("[f(count=1), g()]", "", [("f", '{"count": 1}'), ("g", "{}")]),
    "white space around": ("\n[ f( count = 1 ) ,\n g( ) ]\n", "", [("f", '{"count": 1}'), ("g", "{}")]),
    "a comma at the end": ("[f(count=1,), g(), ]", "", [("f", '{"count": 1}'), ("g", "{}")]),
    "dotted names": ("[a.f(x=1)]", "", [("a.f", '{"x": 1}')]),
    "names with a hyphen": ("[get-time(x=1), g()]", "", [("get-time", '{"x": 1}'), ("g", "{}")]),
    "a sum that is no call": ("[a-1, b]", "[a-1, b]", []),
    "every kind of value": (
        "[f(a='x', b=-1.5, c=True, d=None, e=[1, (2,)], f={'k': {}}, g=true, h=null)]",
        "",
        [("f", '{"a": "x", "b": -1.5, "c": true, "d": null, "e": [1, [2]], "f": {"k": {}}, "g": true, "h": null}')],
    ),
    "brackets and quotes in strings": (
        """[f(text="a ')]\\" 漢 😀", items=[')', "("])]""",
        "",
        [("f", '{"text": "a \')]\\" 漢 😀", "items": [")", "("]}')],
    ),
    "unknown escapes": (r"[f(text='\d')]", "", [("f", r'{"text": "\\d"}')]),
    "line breaks in strings": (
        "[f(text='a\n\tb', items=[\"c\\\n\\nd\0\"])]",
        "",
        [("f", r'{"text": "a\n\tb", "items": ["c\nd\u0000"]}')],
    ),
    "a string in three quotes": ('[f(text="""a\nb""")]', "", [("f", r'{"text": "a\nb"}')]),
    "sets": ("[f(items={'x', 'y'})]", "", [("f", '{"items": ["x", "y"]}')]),
    "numbers as keys": ("[f(options={1: 'a', 2: {}})]", "", [("f", '{"options": {"1": "a", "2": {}}}')]),
    "half a surrogate pair": (r"[f(text='\ud800')]", "", [("f", r'{"text": "\ud800"}')]),
    "an unknown function": ("[nobody()]", "", [("nobody", "{}")]),
    "marks": ("<|python_start|>[f(count=1)]<|python_end|>", "", [("f", '{"count": 1}')]),
    "text and marks": ("So <|python_start|>[f(count=1)]<|python_end|>.", "So .", [("f", '{"count": 1}')]),
    "text behind": ("[f(count=1)] ok", " ok", [("f", '{"count": 1}')]),
    "a list of numbers": ("[1, 2]", "[1, 2]", []),
    "a link": ("[docs](http://x)", "[docs](http://x)", []),
    "a call that does not begin the output": ("Call [f()]", "Call [f()]", []),
    "positions": ("[f(1)]", "[f(1)]", []),
    "two stars": ("[f(**a)]", "[f(**a)]", []),
    "names as values": ("[f(a=b)]", "[f(a=b)]", []),
    "code as values": ("[f(a=g())]", "[f(a=g())]", []),
    "numbers JSON has not": ("[f(a=1e999)]", "[f(a=1e999)]", []),
    "the same name twice": ("[f(a=1, a=2)]", "[f(a=1, a=2)]", []),
    "brackets that close nothing": ("[f(a=[)])]", "[f(a=[)])]", []),
    "a good call, then a bad one": ("[g(), f(1)]", "f(1)", [("g", "{}")]),
    "bad calls between good ones": ("[f(1), g(), f(a=b), g()] x", "f(1)f(a=b) x", [("g", "{}"), ("g", "{}")]),
    "bad calls only": ("[f(1), f(a=b)] x", "[f(1), f(a=b)] x", []),
    "bad calls only, marked": (
        "<|python_start|>[f(1)]<|python_end|>",
        "<|python_start|>[f(1)]<|python_end|>",
        [],
    ),
    "a bad call, and an open end": ("[f(1), ", "[f(1), ", []),
    "a good call, and an open end": ("[g(), ", "", [("g", "{}")]),
    "a bad call, then text": ("[f(1), g", "[f(1), g", []),
    "no end": ("[g()", "", [("g", "{}")]),
    "cut in a call": ("[g(), f(text='a", ", f(text='a", [("g", "{}")]),
}

LFM2 = {
    "marks": ("<|tool_call_start|>[f(count=1)]<|tool_call_end|>ok", "ok", [("f", '{"count": 1}')]),
    "no marks": ("[f(count=1)]", "", [("f", '{"count": 1}')]),
    "repeated behind the mark": (
        "<|tool_call_start|>[g()]<|tool_call_end|>[g()]<|tool_call_end|>\n[g()]<|tool_call_end|> ok",
        " ok",
        [("g", "{}")],
    ),
    "the mark repeated": ("<|tool_call_start|>[g()]<|tool_call_end|><|tool_call_end|>ok", "ok", [("g", "{}")]),
    "a list behind the mark": ("<|tool_call_start|>[g()]<|tool_call_end|>\n[1] ok", "\n[1] ok", [("g", "{}")]),
    "a list, then a call": (
        "<|tool_call_start|>[g()]<|tool_call_end|>[1]<|tool_call_start|>[g()]<|tool_call_end|>",
        "[1]",
        [("g", "{}"), ("g", "{}")],
    ),
}

OLMO3 = {
    "no call": ("Hello f()", "Hello f()", []),
    "one call": ("<function_calls>f(count=1)</function_calls>", "", [("f", '{"count": 1}')]),
    "several calls": (
        "a\n<function_calls>\nf(flag=true, maybe=null)\ng()\n</function_calls>\nb",
        "a\n\nb",
        [("f", '{"flag": true, "maybe": null}'), ("g", "{}")],
    ),
    "a line break in a string": ("<function_calls>\nf(text='a\nb')\n</function_calls>", "", [("f", r'{"text": "a\nb"}')]),
    "a good call, then a bad one": ("<function_calls>\ng()\nf(1)\n", "f(1)", [("g", "{}")]),
    "a bad call, then a good one": ("<function_calls>\nf(1)\ng()\n</function_calls>", "f(1)", [("g", "{}")]),
    "bad calls only": ("<function_calls>\nf(1)\n</function_calls>", "<function_calls>\nf(1)\n</function_calls>", []),
    "no calls": ("<function_calls>\n</function_calls>", "<function_calls>\n</function_calls>", []),
    "no end mark": ("<function_calls>\ng()", "", [("g", "{}")]),
    "cut in a call": ("<function_calls>\ng()\nf(text='a", "\nf(text='a", [("g", "{}")]),
}

TABLES = {"olmo3": OLMO3, "pythonic": PYTHONIC, "llama4_pythonic": PYTHONIC, "lfm2": LFM2}
ROWS = [pytest.param(name, *row, id=f"{name}: {title}") for name, table in TABLES.items() for title, row in table.items()]


@pytest.mark.parametrize(("format_name", "text", "content", "calls"), ROWS)
def test_output_means_the_same_in_every_chunking(format_name, text, content, calls):
    check_reading(format_name, text, content, calls)
