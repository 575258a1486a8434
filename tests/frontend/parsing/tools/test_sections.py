"""Calls in marked sections: DeepSeek V3 and V3.1, Kimi K2. Row: output, content, calls."""

import pytest

from tests.frontend.parsing.tools.reading import check_reading, parser_of, read
from tetrad.frontend.parsing.elements.interface import Tool

NESTED = '{"options": {"a": [1, {"b": "}]"}], "q": "\\"{[\\\\"}, "text": "😀 漢字 <|call|> \\u00e9"}'
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def v3(arguments, name="f"):
    return f"{CALL}function{SEPARATOR}{name}\n```json\n{arguments}\n```{CALL_END}"


def v31(arguments, name="f"):
    return f"{CALL}{name}{SEPARATOR}{arguments}{CALL_END}"


FENCED = '{"text": "```"}'
DEEPSEEK = {
    "no call": ("Hello <｜tool", "Hello <｜tool", []),
    "V3": (f"{BEGIN}{v3(NESTED)}{END}", "", [("f", NESTED)]),
    "V3, several calls": (f"Hm. {BEGIN}{v3('{}')}\n{v3('{}', 'g')}{END}", "Hm. ", [("f", "{}"), ("g", "{}")]),
    "V3.1": (f"{BEGIN}{v31(NESTED)}{END}", "", [("f", NESTED)]),
    "V3.1, several calls": (f"Hm. {BEGIN}{v31('{}')}{v31('{}', 'g')}{END}", "Hm. ", [("f", "{}"), ("g", "{}")]),
    "a fence in a string": (f"{BEGIN}{v3(FENCED)}{END}", "", [("f", FENCED)]),
    "no section": (v31("{}"), "", [("f", "{}")]),
    "text behind": (f"{BEGIN}{v31('{}')}{END} ok", " ok", [("f", "{}")]),
    "an empty section": (f"{BEGIN}{END}", f"{BEGIN}{END}", []),
    "no JSON": (f"{BEGIN}{v31('what?')}", f"{BEGIN}{CALL}f{SEPARATOR}what?{CALL_END}", []),
    "no name": (f"{CALL}{SEPARATOR}{{}}", f"{CALL}{SEPARATOR}{{}}", []),
    "V3, no arguments": (f"{BEGIN}{v3('', 'g')}{END}", "", [("g", "{}")]),
    "V3.1, no arguments": (f"{BEGIN}{v31('', 'g')}{v31('{}')}{END}", "", [("g", "{}"), ("f", "{}")]),
    "broken arguments": (f"{BEGIN}{CALL}f{SEPARATOR}{{{CALL_END}{v31('{}', 'g')}{END}", "", [("f", "{"), ("g", "{}")]),
    "cut in the name": (f"{BEGIN}{CALL}function{SEPARATOR}f", f"{BEGIN}{CALL}function{SEPARATOR}f", []),
    "cut in the arguments": (f'{BEGIN}{CALL}f{SEPARATOR}{{"te', "", [("f", '{"te')]),
}


def kimi(arguments, call_id="functions.f:0"):
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def section(*calls):
    return "<|tool_calls_section_begin|>" + "".join(calls) + "<|tool_calls_section_end|>"


KIMI = {
    "no call": ("Hello", "Hello", []),
    "a call": (section(kimi(NESTED)), "", [("f", NESTED)]),
    "several calls": ("a" + section(kimi("{}"), kimi("{}", "functions.g:1")), "a", [("f", "{}"), ("g", "{}")]),
    "spaced": (section("\n", kimi(" {} ", "\nfunctions.f:0\n"), "\n"), "", [("f", "{}")]),
    "no arguments": (section(kimi("", "functions.g:0"), kimi("{}")), "", [("g", "{}"), ("f", "{}")]),
    "a dotted name": (section(kimi("{}", "functions.a.f:3")), "", [("a.f", "{}")]),
    "a bare name": (section(kimi("{}", "f")), "", [("f", "{}")]),
    "a number only": (section(kimi("{}", "0")), section(kimi("{}", "0")), []),
    "a number without a name": (section(kimi("{}", "functions:1")), section(kimi("{}", "functions:1")), []),
    "marks in the singular": (
        f"<|tool_call_section_begin|>{kimi('{}')}<|tool_call_section_end|>",
        "",
        [("f", "{}")],
    ),
    "no id": (section(kimi("{}", "")), section(kimi("{}", "")), []),
    "cut": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0",
        [],
    ),
}

TABLES = {
    "deepseek_v3": DEEPSEEK,
    "deepseek_v31": {title: DEEPSEEK[title] for title in ("V3", "V3.1")},
    "kimi_k2": KIMI,
}
ROWS = [pytest.param(name, *row, id=f"{name}: {title}") for name, table in TABLES.items() for title, row in table.items()]


@pytest.mark.parametrize(("format_name", "text", "content", "calls"), ROWS)
def test_output_means_the_same_in_every_chunking(format_name, text, content, calls):
    check_reading(format_name, text, content, calls)


def test_kimi_calls_keep_their_ids():
    turn = read(parser_of("kimi_k2"), [section(kimi("{}", "functions.f:7"))])

    assert [call.id for call in turn.tool_calls] == ["functions.f:7"]


@pytest.mark.parametrize("call_id", ["0", "functions:12", "functions.:3", ":4"])
def test_a_number_of_kimi_calls_the_only_tool(call_id):
    turn = read(parser_of("kimi_k2", [Tool("f")]), [section(kimi("{}", call_id))])

    assert [(call.name, call.id) for call in turn.tool_calls] == [("f", "")]
