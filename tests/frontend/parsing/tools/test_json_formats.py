"""Formats that write calls as JSON objects: Hermes, Llama 3, Mistral, Granite and others. Row: output, content, calls."""

import pytest

from tests.frontend.parsing.tools.reading import check_reading, parser_of, read

F = '{"name": "f", "arguments": {"count": 1}}'
COUNT = ("f", '{"count": 1}')
COHERE = '{"tool_call_id": "0", "tool_name": "f", "parameters": {"count": 1}}'
APERTUS = '{"f": {"count": 1}}'
NESTED = '{"options": {"a": [1, {"b": "}]"}], "q": "\\"{[</tool_call>\\\\"}, "text": "😀 漢字 שלום \\u00e9"}'

HERMES = {
    "nothing": ("", "", []),
    "no call": ("Hello <b>world</b>, {1, 2}!\n", "Hello <b>world</b>, {1, 2}!\n", []),
    "white space only": (" \n ", " \n ", []),
    "one call": (f"<tool_call>\n{F}\n</tool_call>", "", [COUNT]),
    "no white space": (f"<tool_call>{F}</tool_call>", "", [COUNT]),
    "several calls": (f"<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{F}\n</tool_call>\n", "", [COUNT, COUNT]),
    "several calls in one mark": (f"<tool_call>[{F}, {F}]</tool_call>", "", [COUNT, COUNT]),
    "text before": (f"Let me see.\n\n<tool_call>{F}</tool_call>", "Let me see.\n\n", [COUNT]),
    "white space before": (f"\n\n<tool_call>{F}</tool_call>\n", "", [COUNT]),
    "text behind and between": (
        f"a <tool_call>{F}</tool_call> b <tool_call>{F}</tool_call> c",
        "a  b  c",
        [COUNT, COUNT],
    ),
    "nested and quoted": (f'<tool_call>{{"name": "f", "arguments": {NESTED}}}</tool_call>', "", [("f", NESTED)]),
    "arguments first": ('<tool_call>{"arguments": {"count": 1}, "name": "f"}</tool_call>', "", [COUNT]),
    "other keys": ('<tool_call>{"id": [1, "x"], "name": "f", "arguments": {"count": 1}, "k": 1}</tool_call>', "", [COUNT]),
    "escapes in names": ('<tool_call>{"na\\u006de": "\\u0066", "arguments": {}}</tool_call>', "", [("f", "{}")]),
    "empty arguments": ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", [("f", "{}")]),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    "arguments by a wrong name": (
        '<tool_call>{"name": "f", "args": {"count": 1}}</tool_call>',
        '<tool_call>{"name": "f", "args": {"count": 1}}</tool_call>',
        [],
    ),
    "null arguments": ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    "arguments as a string": (
        '<tool_call>{"name": "f", "arguments": "{\\"text\\": \\"a\\\\n\\"}"}</tool_call>',
        "",
        [("f", '{"text": "a\\n"}')],
    ),
    "parameters instead of arguments": ('<tool_call>{"name": "f", "parameters": {"count": 1}}</tool_call>', "", [COUNT]),
    "an unknown function": ('<tool_call>{"name": "nobody", "arguments": {}}</tool_call>', "", [("nobody", "{}")]),
    "not quite JSON passes as it is": (
        '<tool_call>{"name": "f", "arguments": {\'a\': True,}}</tool_call>',
        "",
        [("f", "{'a': True,}")],
    ),
    "line breaks in a string": (
        '<tool_call>{"name": "f", "arguments": {\n"text": "a\n\tb\\n"}}</tool_call>',
        "",
        [("f", '{\n"text": "a\\n\\tb\\n"}')],
    ),
    "no end mark": (f"<tool_call>{F}", "", [COUNT]),
    "no end mark, text": (f"<tool_call>{F}\nand", "\nand", [COUNT]),
    "a bracket too few": ('<tool_call>{"name": "f", "arguments": {"count": 1}</tool_call> x', " x", [COUNT]),
    "a bracket too many": (f"<tool_call>{F}}}</tool_call>", "}</tool_call>", [COUNT]),
    "a bracket that closes nothing": (
        '<tool_call>{"name": "f", "arguments": {"a": ]}}</tool_call>',
        "]}}</tool_call>",
        [("f", '{"a": ')],
    ),
    "a mark inside broken arguments": (
        f'<tool_call>{{"name": "f", "arguments": {{"a": <tool_call>{F}</tool_call>',
        "",
        [("f", '{"a": '), COUNT],
    ),
    "no JSON": ("<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", []),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    "empty name": ('<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
    "a name that is no text": ('<tool_call>{"name": 1}</tool_call>', '<tool_call>{"name": 1}</tool_call>', []),
    "half a surrogate pair": ('<tool_call>{"name": "\\ud800"}', '<tool_call>{"name": "\\ud800"}', []),
    "arguments that are no object": (
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [],
    ),
    "broken call, then a good one": (f"<tool_call>oops <tool_call>{F}</tool_call>", "<tool_call>oops ", [COUNT]),
    "cut in the mark": ("a <tool_c", "a <tool_c", []),
    "cut before the name is known": ('<tool_call>{"name": "f', '<tool_call>{"name": "f', []),
    "cut before the arguments": ('<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
    "cut in the arguments": ('<tool_call>{"name": "f", "arguments": {"text": "a\\', "", [("f", '{"text": "a\\')]),
    "cut in the end mark": (f"<tool_call>{F}\n</tool", "\n</tool", [COUNT]),
    "almost a mark": ("<tool_cal l> </tool_call> <<tool_call", "<tool_cal l> </tool_call> <<tool_call", []),
}

P = '{"name": "f", "parameters": {"count": 1}}'
LLAMA3 = {
    "no call": ("Hello {x}", "Hello {x}", []),
    "one call": (P, "", [COUNT]),
    "white space around": (f"\n{P}\n", "", [COUNT]),
    "tag": (f"<|python_tag|>{P}", "", [COUNT]),
    "text and tag": (f"Sure: <|python_tag|>{P}", "Sure: ", [COUNT]),
    "several calls": (f"{P}; {P};{P}", "", [COUNT, COUNT, COUNT]),
    "several tags": (f"<|python_tag|>{P}<|python_tag|>{P}", "", [COUNT, COUNT]),
    "arguments": (F, "", [COUNT]),
    "type": ('{"type": "function", "name": "f", "parameters": {"count": 1}}', "", [COUNT]),
    "nested and quoted": (f'{{"name": "f", "parameters": {NESTED}}}', "", [("f", NESTED)]),
    "semicolons in strings": (
        '{"name": "f", "parameters": {"text": "a; {b"}}; ' + P,
        "",
        [("f", '{"text": "a; {b"}'), COUNT],
    ),
    "text behind": (f"{P} and so on", " and so on", [COUNT]),
    "a semicolon and no call": (f"{P}; done", "; done", [COUNT]),
    "JSON that is an answer": ('{"answer": {"name": "f"}}', '{"answer": {"name": "f"}}', []),
    "a name alone is an answer": ('{"name": "Alice"}', '{"name": "Alice"}', []),
    "a name among others is an answer": ('{"name": "Alice", "age": 3}', '{"name": "Alice", "age": 3}', []),
    "a call that does not begin the output": (f"Call {P}", f"Call {P}", []),
    "code behind the tag": ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "an array": (f"[{P}]", f"[{P}]", []),
    "cut": ('{"name": "f", "parameters": {"te', "", [("f", '{"te')]),
    "cut in the tag": ("<|python_", "<|python_", []),
}

MISTRAL = {
    "no call": ("Hello [TOOL_CALL", "Hello [TOOL_CALL", []),
    "an array": (f"[TOOL_CALLS][{F}, {F}]", "", [COUNT, COUNT]),
    "an array, spaced": (f"[TOOL_CALLS] [\n{F} ,\n{F}\n]\n", "", [COUNT, COUNT]),
    "an object": (f"[TOOL_CALLS]{F}", "", [COUNT]),
    "text before": (f"So: [TOOL_CALLS][{F}]", "So: ", [COUNT]),
    "text behind": (f"[TOOL_CALLS][{F}] done", " done", [COUNT]),
    "a name": ('[TOOL_CALLS]f{"count": 1}', "", [COUNT]),
    "a name and a mark": ('[TOOL_CALLS]f[ARGS]{"count": 1}[TOOL_CALLS]g[ARGS]{}', "", [COUNT, ("g", "{}")]),
    "a name and an id": ('[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{"count": 1}', "", [COUNT]),
    "marks in strings": (
        '[TOOL_CALLS]f[ARGS]{"text": "[TOOL_CALLS]g[ARGS]{}"}',
        "",
        [("f", '{"text": "[TOOL_CALLS]g[ARGS]{}"}')],
    ),
    "nested and quoted": (f"[TOOL_CALLS]f[ARGS]{NESTED}", "", [("f", NESTED)]),
    "an empty array": ("[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    "no call in the array": (f"[TOOL_CALLS][{F}, 1]", ", 1]", [COUNT]),
    "text behind the mark": ("[TOOL_CALLS]what now?", "[TOOL_CALLS]what now?", []),
    "no object": ("[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]f[ARGS][1]", []),
    "cut behind the name": ("[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]", []),
    "cut in the array": (f'[TOOL_CALLS][{F}, {{"name": "g", "arguments": {{"a', "", [COUNT, ("g", '{"a')]),
    "cut between calls": (f"[TOOL_CALLS][{F}, ", "", [COUNT]),
}

GRANITE = {
    "no call": ("Hello", "Hello", []),
    "an array": (f"<|tool_call|>[{F}, {F}]", "", [COUNT, COUNT]),
    "spaced": (f"<|tool_call|> [ {F} ] ", "", [COUNT]),
    "the plain mark": (f"<tool_call>[{F}]</tool_call>", "", [COUNT]),
    "an object": (f"<tool_call>\n{F}\n</tool_call>\n", "", [COUNT]),
    "text before": (f"Well<|tool_call|>[{F}]", "Well", [COUNT]),
    "no calls": ("<|tool_call|>[]", "<|tool_call|>[]", []),
    "cut": (f"<|tool_call|>[{F}", "", [COUNT]),
}

PHI4 = {
    "no call": ("functools.partial(f)", "functools.partial(f)", []),
    "the word": (f"functools[{F}, {F}]", "", [COUNT, COUNT]),
    "the mark": (f"<|tool_call|>[{F}]<|/tool_call|>", "", [COUNT]),
    "one object in the mark": (f"<|tool_call|>{F}<|/tool_call|>", "", [COUNT]),
    "text before": (f"Well: functools[{F}]", "Well: ", [COUNT]),
    "no call in the array": ("functools[1]", "functools[1]", []),
    "cut": ('functools[{"name": "f", "arguments": {"a": "functools[', "", [("f", '{"a": "functools[')]),
}

MARKED = {
    "longcat": {"two calls": (f"a<longcat_tool_call>\n{F}\n</longcat_tool_call>" * 2, "aa", [COUNT, COUNT])},
    "internlm": {
        "parameters": (
            'a<|action_start|><|plugin|>\n{"name": "f", "parameters": {"count": 1}}<|action_end|>\n',
            "a",
            [COUNT],
        ),
        "another action": ("<|action_start|><|interpreter|>", "<|action_start|><|interpreter|>", []),
    },
    "gigachat3": {
        "a role": (f"a\nfunction call<|role_sep|>\n{F}", "a\n", [COUNT]),
        "a token": (f"<|function_call|>{F}", "", [COUNT]),
        "words": ("a function call", "a function call", []),
    },
    "granite-20b-fc": {"two calls": (f"<function_call> {F}\n<function_call> {F}", "", [COUNT, COUNT])},
    "hunyuan_a13b": {
        "an array": (f"a<tool_calls>[{F}, {F}]</tool_calls>", "a", [COUNT, COUNT]),
        "lines": (f"<tool_calls>[\n  {F}\n]</tool_calls>", "", [COUNT]),
        "an empty array": ("<tool_calls>[]</tool_calls>", "<tool_calls>[]</tool_calls>", []),
    },
}
MARKED |= {
    "cohere_command3": {
        "an array": (f"a<|START_ACTION|>[\n    {COHERE},\n    {COHERE}\n]<|END_ACTION|>", "a", [COUNT, COUNT]),
        "no id": ('<|START_ACTION|>[{"tool_name": "f", "parameters": {"count": 1}}]<|END_ACTION|>', "", [COUNT]),
        "no arguments": ('<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f"}]<|END_ACTION|>', "", [("f", "{}")]),
        "another action": ("<|START_ACTION|>wait<|END_ACTION|>", "<|START_ACTION|>wait<|END_ACTION|>", []),
    },
    "apertus": {
        "an array": (f"a<|tools_prefix|>[{APERTUS}, {APERTUS}]<|tools_suffix|>b", "ab", [COUNT, COUNT]),
        "lines": (f"<|tools_prefix|>[\n  {APERTUS}\n]", "", [COUNT]),
        "no object": ('<|tools_prefix|>[{"f": 1}]', '<|tools_prefix|>[{"f": 1}]', []),
        "cut": ('<|tools_prefix|>[{"f": {"a": "b', "", [("f", '{"a": "b')]),
    },
    "xlam": {
        "the whole output": (f"[{F}, {F}]", "", [COUNT, COUNT]),
        "a code fence": (f"Well:\n```json\n[{F}]\n```\nso", "Well:\n\nso", [COUNT]),
        "a plain fence": (f"```\n[{F}]\n```", "", [COUNT]),
        "a mark": (f"<tool_call>[{F}]</tool_call>[TOOL_CALLS][{F}]", "", [COUNT, COUNT]),
        "behind reasoning": (f"<think>a</think>\n[{F}]", "<think>a</think>", [COUNT]),
        "an answer in JSON": ('```json\n[{"name": "f"}]\n```', '```json\n[{"name": "f"}]\n```', []),
        "code": ("```python\nf()\n```", "```python\nf()\n```", []),
    },
}

TABLES = {"hermes": HERMES, "llama3_json": LLAMA3, "mistral": MISTRAL, "granite": GRANITE, "phi4_mini_json": PHI4} | MARKED
ROWS = [pytest.param(name, *row, id=f"{name}: {title}") for name, table in TABLES.items() for title, row in table.items()]


@pytest.mark.parametrize(("format_name", "text", "content", "calls"), ROWS)
def test_output_means_the_same_in_every_chunking(format_name, text, content, calls):
    check_reading(format_name, text, content, calls)


def test_arguments_stream_as_they_are_written():
    parser = parser_of("hermes")
    parser.feed('<tool_call>{"name": "f", "arguments": {"text": "a')

    pieces = [piece.text for char in 'b", "c": 1' for piece in parser.feed(char)]

    assert "".join(pieces) == 'b", "c": 1'
    assert len(pieces) == 10


def test_text_streams_while_it_cannot_be_a_mark():
    parser = parser_of("hermes")

    pieces = [[piece.text for piece in parser.feed(chunk)] for chunk in ("a <", "tool", "box>", "<tool_call")]

    assert pieces == [["a "], [], ["<toolbox>"], []]


def test_an_answer_in_json_streams_as_soon_as_it_cannot_be_a_call():
    parser = parser_of("llama3_json")

    assert parser.feed('{"answer"')[0].text == '{"answer"'


def test_mistral_calls_have_ids_of_their_own_if_the_model_writes_them():
    turn = read(parser_of("mistral"), ["[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{}"])

    assert [call.id for call in turn.tool_calls] == ["", "abcDEF123"]
