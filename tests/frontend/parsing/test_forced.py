"""Forced calls: the schemas that constrain outputs to calls, and the parsers of such outputs."""

import json

import jsonschema
import llguidance
import pytest

from tests.frontend.parsing.tools.reading import chunkings, read, shown
from tetrad.frontend.parsing.elements.call_schemas import named_schema, required_schema
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.forced import NamedParser, RequiredParser
from tetrad.services.errors import InvalidRequest

CALL = '{"name": "f", "parameters": {"text": "a\\"]}", "b": [{}]}}'
ARGUMENTS = '{"text": "a\\"]}", "b": [{}]}'
F = ("f", ARGUMENTS)

REQUIRED = {
    "one call": (f"[{CALL}]", "", [F]),
    "several calls": (f" [{CALL}, {CALL},\n{CALL}] ", "", [F, F, F]),
    "no parameters": ('[{"name":"f","parameters":{}}]', "", [("f", "{}")]),
    "cut in the arguments": ('[{"name": "f", "parameters": {"te', "", [("f", '{"te')]),
    "cut between calls": (f"[{CALL}, ", "", [F]),
    "cut before the name": ('[{"na', '[{"na', []),
    "an answer all the same": ("I would rather not.", "I would rather not.", []),
    "nothing": ("", "", []),
}
NAMED = {
    "arguments": (ARGUMENTS, "", [F]),
    "white space": (f"\n{ARGUMENTS}\n", "", [F]),
    "cut": ('{"te', "", [("f", '{"te')]),
    "nothing": ("", "", []),
}

TREE = Tool(
    "tree",
    parameters={
        "type": "object",
        "properties": {"value": {"$ref": "#/$defs/value"}, "left": {"$ref": "#"}, "$ref": {"const": {"$ref": "#"}}},
        "required": ["value"],
        "additionalProperties": False,
        "$defs": {"value": {"type": "integer"}},
    },
)
OTHER = Tool(
    "other",
    parameters={
        "$id": "http://x/y",
        "type": "object",
        "properties": {"value": {"$ref": "#/$defs/value"}},
        "$defs": {"value": {"type": "string"}},
    },
)
TOOLS = [TREE, OTHER, Tool("bare")]


def call(name, **parameters):
    return {"name": name, "parameters": parameters}


VALID = [
    [call("tree", value=1)],
    [call("tree", value=1, left={"value": 2, "left": {"value": 3}})],
    [call("other", value="a"), call("bare")],
    [{**call("tree", value=1), "parameters": {"value": 1, "$ref": {"$ref": "#"}}}],
]
INVALID = [
    [],
    {},
    [call("nobody")],
    [call("tree", value="a")],
    [call("tree", value=1, left={"value": "a"})],
    [call("other", value=1)],
    [call("bare", x=1)],
    [{"name": "bare"}],
    [{**call("bare"), "x": 1}],
]


def follows(grammar, text):
    """Whether the engine core's compiler lets a model write all of `text` and stop."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(grammar)))
    assert not matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(("text", "content", "calls"), REQUIRED.values(), ids=REQUIRED)
def test_required_output_means_the_same_in_every_chunking(text, content, calls):
    for chunks in chunkings(text):
        assert shown(read(RequiredParser(), chunks)) == (content, calls), chunks


@pytest.mark.parametrize(("text", "content", "calls"), NAMED.values(), ids=NAMED)
def test_named_output_means_the_same_in_every_chunking(text, content, calls):
    for chunks in chunkings(text):
        assert shown(read(NamedParser("f"), chunks)) == (content, calls), chunks


def test_required_arguments_stream():
    parser = RequiredParser()
    parser.feed('[{"name": "f", "parameters": {"a')

    assert [piece.text for piece in parser.feed('bc": 1')] == ['bc": 1']


@pytest.mark.parametrize("value", VALID)
def test_required_schema_allows_calls_of_any_tool(value):
    schema = required_schema(TOOLS, parallel=True)

    jsonschema.validate(value, schema)
    assert follows(schema, json.dumps(value))


@pytest.mark.parametrize("value", INVALID)
def test_required_schema_refuses_everything_else(value):
    schema = required_schema(TOOLS, parallel=True)

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema)
    assert not follows(schema, json.dumps(value))


def test_required_schema_allows_one_call_unless_parallel():
    schema = required_schema(TOOLS, parallel=False)

    assert follows(schema, json.dumps([call("bare")]))
    assert not follows(schema, json.dumps([call("bare"), call("bare")]))


def test_named_schema_is_the_tools_own_and_always_an_object():
    assert named_schema(TREE) == TREE.parameters
    assert named_schema(Tool("f", parameters={"properties": {}}))["type"] == "object"
    assert named_schema(Tool("f", parameters={"type": ["object", "null"]}))["type"] == "object"
    assert named_schema(Tool("f")) == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": ["array", "null"]}, {"type": 1}, [], "object"])
def test_parameters_that_are_no_object_are_refused(parameters):
    tool = Tool("f", parameters=parameters)

    with pytest.raises(InvalidRequest, match="'f'"):
        named_schema(tool)
    with pytest.raises(InvalidRequest, match="'f'"):
        required_schema([tool], parallel=True)
