"""Arguments in tags, typed by the tools' schemas: Qwen 3 Coder, GLM 4.5. Row: output, content, calls."""

import json

import pytest

from tests.frontend.parsing.tools.reading import check_reading, parser_of, read, shown
from tetrad.frontend.parsing.elements.interface import Tool


def xml(*parameters, name="f"):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


QWEN3 = {
    "no call": ("Hello <function name>", "Hello <function name>", []),
    "no parameters": (xml(), "", [("f", "{}")]),
    "several calls": ("a\n" + xml() + "\n" + xml(name="g") + "\n", "a\n", [("f", "{}"), ("g", "{}")]),
    "a string": (xml(("text", "5")), "", [("f", '{"text": "5"}')]),
    "a long string": (
        xml(("text", '\n  def f():\n\treturn "<b>\\" 漢😀\n')),
        "",
        [("f", '{"text": "\\n  def f():\\n\\treturn \\"<b>\\\\\\" 漢😀\\n"}')],
    ),
    "an empty string": (xml(("text", "")), "", [("f", '{"text": ""}')]),
    "no newlines": (
        "<tool_call><function=f><parameter=text>a</parameter></function></tool_call>",
        "",
        [("f", '{"text": "a"}')],
    ),
    "numbers": (xml(("count", "5"), ("ratio", "-1.5e3")), "", [("f", '{"count": 5, "ratio": -1.5e3}')]),
    "booleans": (xml(("flag", "True")), "", [("f", '{"flag": true}')]),
    "JSON": (
        xml(("items", '["a", "b"]'), ("options", '{"a": {}}')),
        "",
        [("f", '{"items": ["a", "b"], "options": {"a": {}}}')],
    ),
    "JSON with line breaks in its strings": (
        xml(("options", '{"a": "b\nc",\n "d": 1}')),
        "",
        [("f", '{"options": {"a": "b\\nc", "d": 1}}')],
    ),
    "Python": (xml(("options", "{'a': None, 'b': (1,)}")), "", [("f", '{"options": {"a": null, "b": [1]}}')]),
    "null where it may be": (xml(("maybe", "None"), ("text", "null")), "", [("f", '{"maybe": null, "text": "null"}')]),
    "one of several kinds": (xml(("either", "5"), ("maybe", "5")), "", [("f", '{"either": 5, "maybe": 5}')]),
    "a string among several kinds": (xml(("either", '"5"')), "", [("f", '{"either": "\\"5\\""}')]),
    "an enum": (xml(("unit", "c")), "", [("f", '{"unit": "c"}')]),
    "a reference": (xml(("linked", '{"a": 1}')), "", [("f", '{"linked": {"a": 1}}')]),
    "what does not fit is a string": (
        xml(("count", "many"), ("ratio", "NaN"), ("items", "[1, "), ("flag", "1")),
        "",
        [("f", '{"count": "many", "ratio": "NaN", "items": "[1, ", "flag": "1"}')],
    ),
    "an unknown parameter": (xml(("other", "5")), "", [("f", '{"other": "5"}')]),
    "an unknown function": (xml(("text", "5"), name="nobody"), "", [("nobody", '{"text": "5"}')]),
    "a quote in a key": (xml(('a"b', "c")), "", [("f", '{"a\\"b": "c"}')]),
    "no outer tag": ("<function=f>\n</function>\n</tool_call>", "", [("f", "{}")]),
    "JSON in the tag": ('<function=f>{"count": 1}</function>', "", [("f", '{"count": 1}')]),
    "tags in values": (
        xml(("text", "</function></tool_call><tool_call>")),
        "",
        [("f", '{"text": "</function></tool_call><tool_call>"}')],
    ),
    "no end tags of values": (
        "<tool_call>\n<function=f>\n<parameter=count>\n5\n<parameter=text>\na < b\n</function>\n</tool_call>\nc",
        "\nc",
        [("f", '{"count": 5, "text": "a < b"}')],
    ),
    "text instead of a parameter": ("<function=f>what?</function>", "what?</function>", [("f", "{}")]),
    "no name": ("<function=></function>", "<function=></function>", []),
    "JSON in the outer tag": ("<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
    "cut in the name": ("<tool_call>\n<function=f", "<tool_call>\n<function=f", []),
    "cut in a key": ("<function=f><parameter=te", "<parameter=te", [("f", "")]),
    "cut in a string": ("<function=f><parameter=text>\nab\n", "", [("f", '{"text": "ab')]),
    "cut in a number": ("<function=f><parameter=count>\n12", "", [("f", '{"count": 12')]),
    "cut in an end tag": ("<function=f><parameter=text>\nab\n</para", "", [("f", '{"text": "ab\\n</para')]),
    "cut in the mark of a key": ("<function=f><parameter=count>1</parameter>\n<par", "<par", [("f", '{"count": 1')]),
    "cut between parameters": ("<function=f><parameter=count>1</parameter>\n", "", [("f", '{"count": 1')]),
}


def glm(*arguments, name="f"):
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments)
    return f"<tool_call>{name}\n{inner}</tool_call>"


GLM = {
    "no call": ("Hello <tool_call> you", "Hello <tool_call> you", []),
    "no arguments": ("<tool_call>f</tool_call>", "", [("f", "{}")]),
    "several calls": (f"a {glm()}\n{glm(name='g')}", "a ", [("f", "{}"), ("g", "{}")]),
    "values": (
        glm(("text", "5"), ("count", "5"), ("options", '{"a": "</b>"}'), ("flag", "true")),
        "",
        [("f", '{"text": "5", "count": 5, "options": {"a": "</b>"}, "flag": true}')],
    ),
    "newlines are the value's": (glm(("text", "\na\n")), "", [("f", '{"text": "\\na\\n"}')]),
    "no newlines": ("<tool_call>f<arg_key>count</arg_key><arg_value>1</arg_value></tool_call>", "", [("f", '{"count": 1}')]),
    "no value": ("<tool_call>f<arg_key>count</arg_key></tool_call>", "<arg_key>count</arg_key>", [("f", "{}")]),
    "JSON": ('<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "f"}</tool_call>', []),
    "cut in the name": ("<tool_call>f", "<tool_call>f", []),
    "cut in a key": ("<tool_call>f\n<arg_key>co", "<arg_key>co", [("f", "")]),
    "cut in the mark of a key": (
        "<tool_call>f\n<arg_key>count</arg_key>\n<arg_value>1</arg_value>\n<arg_",
        "<arg_",
        [("f", '{"count": 1')],
    ),
    "cut in the end mark of a key": ("<tool_call>f\n<arg_key>text</", "<arg_key>text</", [("f", "")]),
    "cut in the mark of a value": ("<tool_call>f\n<arg_key>text</arg_key>\n<ar", "<arg_key>text</arg_key>\n<ar", [("f", "")]),
    "cut in a value": ("<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>ab", "", [("f", '{"text": "ab')]),
    "an end tag in a value": (glm(("text", "a</arg_value> b")), "", [("f", '{"text": "a</arg_value> b"}')]),
}

HY_V3 = {
    "a section": (
        (
            "a<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>count</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
            "<tool_call>g<tool_sep></tool_call>\n</tool_calls>"
        ),
        "a",
        [("f", '{"count": 1}'), ("g", "{}")],
    ),
    "a suffix in every mark": (
        (
            "a<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>text</arg_key:opensource>\n"
            "<arg_value:opensource></arg_value></arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
        ),
        "a",
        [("f", '{"text": "</arg_value>"}')],
    ),
    "no section, no separator": ("<tool_call>f</tool_call>", "", [("f", "{}")]),
    "an empty section": ("<tool_calls></tool_calls>", "<tool_calls></tool_calls>", []),
    "cut in the separator": ("<tool_calls><tool_call>f<tool_", "<tool_calls><tool_call>f<tool_", []),
}


def solar(*arguments, name="f"):
    inner = "".join(f"<|tool_arg:start|>{key}<|tool_arg:value|>{value}<|tool_arg:end|>\n" for key, value in arguments)
    return f"<|tool_call:start|>{name}\n{inner}<|tool_call:end|>"


SOLAR = {
    "several calls": (f"a {solar()}\n{solar(name='g')}", "a ", [("f", "{}"), ("g", "{}")]),
    "values": (
        solar(("text", " 5"), ("count", "5"), ("options", '{"a": 1}')),
        "",
        [("f", '{"text": " 5", "count": 5, "options": {"a": 1}}')],
    ),
    "an end mark in a value": (
        solar(("text", "a<|tool_arg:end|>b")),
        "",
        [("f", '{"text": "a<|tool_arg:end|>b"}')],
    ),
    "no value": (
        "<|tool_call:start|>f\n<|tool_arg:start|>text<|tool_call:end|>",
        "<|tool_arg:start|>text",
        [("f", "{}")],
    ),
}

# Files that a coding model writes with a call.
WRITTEN = {
    "XML with such an element": '<a>\n  <parameter name="b">1</parameter>\n  <parameter name="c">2</parameter>\n</a>',
    "an end tag in code": 'text.split("</parameter>")\nreturn',
    "a parameter of the same call": '"""\n<parameter=text>\nb\n</parameter>\n"""',
    "a whole call": f'"""\n{xml(("text", "b"), ("count", "5"))}\n"""',
    "a call of another function": '"""\n<tool_call>\n<function=g>\n<parameter=x>1</parameter>\n</function>\n</tool_call>\n"""',
    "a tag that is not closed": "before\n<parameter=key>\nbehind",
    "the end of a function": "a\n</function>\nb",
    "the ends of a parameter and a function": "a\n</parameter>\n</function>",
    "a function with a parameter of the same call": "<function=g>\n<parameter=text>\n1\n</parameter>\n</function>",
    "the beginning of a parameter": "</parameter> <parameter=",
}

TABLES = {
    "qwen3_coder": QWEN3,
    "qwen3_xml": {title: QWEN3[title] for title in ("several calls", "numbers")},
    "glm45": GLM,
    "hy_v3": HY_V3,
    "solar_open2": SOLAR,
}
ROWS = [pytest.param(name, *row, id=f"{name}: {title}") for name, table in TABLES.items() for title, row in table.items()]


@pytest.mark.parametrize(("format_name", "text", "content", "calls"), ROWS)
def test_output_means_the_same_in_every_chunking(format_name, text, content, calls):
    check_reading(format_name, text, content, calls)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "int"}, "5"),
        ({"type": ["float", "None"]}, "5"),
        ({"anyOf": [{"type": "int"}]}, "5"),
        ({"type": "str"}, '"5"'),
        ({"anyOf": 5}, '"5"'),
        ({"oneOf": True, "anyOf": [5]}, '"5"'),
        ({"type": 5}, '"5"'),
        (5, '"5"'),
    ],
)
def test_schemas_by_other_rules_are_read_as_far_as_they_say_something(schema, value):
    """Names of Python's types are understood; what is no schema says nothing, so the value is a string."""
    tool = Tool("f", parameters={"type": "object", "properties": {"x": schema}})

    turn = read(parser_of("qwen3_coder", [tool]), [xml(("x", "5"))])

    assert shown(turn) == ("", [("f", f'{{"x": {value}}}')])


def test_string_parameters_stream_while_they_are_written():
    parser = parser_of("qwen3_coder")
    parser.feed("<tool_call>\n<function=f>\n<parameter=text>\n")

    pieces = [[piece.text for piece in parser.feed(chunk)] for chunk in ('a"', "b\n", "c")]

    assert pieces == [['a\\"'], ["b"], ["\\nc"]]


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("behind", ["", "\n" + xml(name="g")])
def test_tags_in_a_value_do_not_end_it(text, behind):
    output = xml(("count", "5"), ("text", text)) + behind
    arguments = json.dumps({"count": 5, "text": text})

    check_reading("qwen3_coder", output, "", [("f", arguments), ("g", "{}")] if behind else [("f", arguments)])
