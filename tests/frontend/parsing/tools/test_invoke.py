"""Calls in tags `invoke`: MiniMax M2, DeepSeek V3.2 and V4, Step 3, MiniCPM 5. Row: output, content, calls."""

import pytest

from tests.frontend.parsing.tools.reading import check_reading

OPEN, CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"


def invoke(*parameters, name="f"):
    inner = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in parameters)
    return f'<invoke name="{name}">\n{inner}</invoke>\n'


def section(*calls):
    return f"{OPEN}\n{''.join(calls)}{CLOSE}"


MINIMAX = {
    "no call": ("Hello <invoke>", "Hello <invoke>", []),
    "no parameters": (section(invoke()), "", [("f", "{}")]),
    "several calls": ("a\n" + section(invoke(), invoke(name="g")) + "b", "a\nb", [("f", "{}"), ("g", "{}")]),
    "several sections": (section(invoke()) + "\n" + section(invoke(name="g")), "", [("f", "{}"), ("g", "{}")]),
    "values by the schema": (
        section(invoke(("text", "5"), ("count", "5"), ("options", '{"a": 1}'), ("flag", "true"), ("other", "5"))),
        "",
        [("f", '{"text": "5", "count": 5, "options": {"a": 1}, "flag": true, "other": "5"}')],
    ),
    "newlines are the value's": (section(invoke(("text", "\na\n"))), "", [("f", '{"text": "\\na\\n"}')]),
    "an end tag in a value": (section(invoke(("text", "a</parameter> b"))), "", [("f", '{"text": "a</parameter> b"}')]),
    "no outer tag": (invoke(("count", "1")), "", [("f", '{"count": 1}')]),
    "an empty section": (f"{OPEN}{CLOSE}", f"{OPEN}{CLOSE}", []),
    "no name": (f'{OPEN}<invoke name="">', f'{OPEN}<invoke name="">', []),
    "text instead of a parameter": ('<invoke name="f">what?</invoke>', "what?</invoke>", [("f", "{}")]),
    "no name of a parameter": ('<invoke name="f"><parameter name="">', '<parameter name="">', [("f", "{}")]),
    "cut in the name": (f'{OPEN}<invoke name="f', f'{OPEN}<invoke name="f', []),
    "cut in a string": ('<invoke name="f"><parameter name="text">ab\n', "", [("f", '{"text": "ab\\n')]),
    "cut in a number": ('<invoke name="f"><parameter name="count">12', "", [("f", '{"count": 12')]),
    "cut in an end tag": ('<invoke name="f"><parameter name="text">ab</para', "", [("f", '{"text": "ab</para')]),
    "cut between parameters": ('<invoke name="f"><parameter name="count">1</parameter>\n', "", [("f", '{"count": 1')]),
}


def dsml(outer, *parameters):
    tags = "".join(f"<｜DSML｜parameter {attributes}>{value}</｜DSML｜parameter>\n" for attributes, value in parameters)
    return f'<｜DSML｜{outer}>\n<｜DSML｜invoke name="f">\n{tags}</｜DSML｜invoke>\n</｜DSML｜{outer}>'


DEEPSEEK = {
    "no parameters": ((), "{}"),
    "strings and JSON": (
        (('name="count" string="true"', "5"), ('name="text" string="false"', '{"a": [1]}')),
        '{"count": "5", "text": {"a": [1]}}',
    ),
    "JSON that is none": ((('name="count" string="false"', "many"),), '{"count": "many"}'),
    "no attribute": ((('name="count"', "5"), ('name="text"', "5")), '{"count": 5, "text": "5"}'),
}
ROWS = [pytest.param("minimax_m2", *row, id=title) for title, row in MINIMAX.items()] + [
    pytest.param(name, "a " + dsml(outer, *parameters), "a ", [("f", arguments)], id=f"{name}: {title}")
    for name, outer in (("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls"))
    for title, (parameters, arguments) in DEEPSEEK.items()
]


def step(inner, name="f", kind="function<｜tool_sep｜>"):
    return f'<｜tool_call_begin｜>{kind}<steptml:invoke name="{name}">{inner}</steptml:invoke><｜tool_call_end｜>'


COUNT = '\n<steptml:parameter name="count">1</steptml:parameter>\n'
BEGIN, END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
STEP3 = {
    "one call": (f"a {BEGIN}\n{step(COUNT)}\n{END}", "a ", [("f", '{"count": 1}')]),
    "several calls": (f"{BEGIN}{step('')}\n{step('', 'g')}{END} b", " b", [("f", "{}"), ("g", "{}")]),
    "no kind": (f"{BEGIN}{step(COUNT, kind='')}{END}", "", [("f", '{"count": 1}')]),
    "no invocation": (f"{BEGIN}<｜tool_call_begin｜>x", f"{BEGIN}<｜tool_call_begin｜>x", []),
}
ROWS += [pytest.param("step3", *row, id=f"step3: {title}") for title, row in STEP3.items()]


def function(*parameters):
    inner = "".join(f'<param name="{key}">{value}</param>' for key, value in parameters)
    return f'<function name="f">{inner}</function>'


MINICPM5 = {
    "several calls": (f"a {function()}\n{function()}", "a ", [("f", "{}"), ("f", "{}")]),
    "values": (
        function(("text", "\na\n"), ("count", "5"), ("items", '["x"]')),
        "",
        [("f", '{"text": "a", "count": 5, "items": ["x"]}')],
    ),
    "a section of text": (
        function(("text", "<![CDATA[a</param> ]]> <b>]]>"), ("count", "1")),
        "",
        [("f", '{"text": "a</param> ]]> <b>", "count": 1}')],
    ),
    "cut in such a section": ('<function name="f"><param name="text"><![CDATA[a]', "", [("f", '{"text": "a]')]),
    "a tag of HTML": ("<function>a</function>", "<function>a</function>", []),
}
ROWS += [pytest.param("minicpm5", *row, id=f"minicpm5: {title}") for title, row in MINICPM5.items()]


@pytest.mark.parametrize(("format_name", "text", "content", "calls"), ROWS)
def test_output_means_the_same_in_every_chunking(format_name, text, content, calls):
    check_reading(format_name, text, content, calls)
