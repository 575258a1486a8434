"""Schemas like those of the JSON-Schema-Test-Suite: sampled texts validate, unsupported keywords are refused."""

import json
from random import Random

import jsonschema
import pytest

from tetrad.services.errors import InvalidRequest

INTEGER, NODE = {"type": "integer"}, {"$ref": "#/$defs/node"}


def record(properties, *required, **more):
    closed = {"additionalProperties": False} if "additionalProperties" not in more else {}
    return {"type": "object", "properties": properties, "required": list(required), **closed, **more}


SCHEMAS = {
    "enum of every type": {"enum": ["a", 1, None, True, 1.5, {"x": [1]}]},
    "enum beside type": {"type": "string", "enum": ["red", "green", "blue"]},
    "enum with escapes": {"enum": ['quote " backslash \\ newline \n', "h\u00e9llo \U0001f600"]},
    "const object": {"const": {"a": [1, 2], "b": {"c": None}}},
    "const string": {"const": "fixed"},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "several types": {"type": ["integer", "null", "boolean"]},
    "integer": INTEGER,
    "integer bounds": {"type": "integer", "minimum": -5, "maximum": 1000},
    "integer exclusive bounds": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "negative bounds": {"type": "integer", "minimum": -1000, "maximum": -990},
    "number exclusive bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1.5},
    "number small bounds": {"type": "number", "minimum": 0.01, "maximum": 0.02},
    "multiple of an integer": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "multiple of a fraction": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10},
    "string": {"type": "string"},
    "string lengths": {"type": "string", "minLength": 3, "maxLength": 9},
    "empty string": {"type": "string", "maxLength": 0},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "pattern with alternatives": {"type": "string", "pattern": "^(foo|bar)+(baz)?$"},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
    "pattern without anchors": {"type": "string", "pattern": "[0-9]", "maxLength": 6},
    "date": {"type": "string", "format": "date"},
    "date and time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "email": {"type": "string", "format": "email", "maxLength": 30},
    "hostname": {"type": "string", "format": "hostname"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    "array": {"type": "array", "items": INTEGER},
    "array lengths": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 4},
    "empty array": {"type": "array", "maxItems": 0},
    "array of arrays": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [INTEGER, {"type": "string", "maxLength": 4}], "items": False, "minItems": 2},
    "tuple with a tail": {"type": "array", "prefixItems": [{"const": "head"}], "items": INTEGER, "minItems": 1, "maxItems": 4},
    "object": record({"name": {"type": "string", "maxLength": 8}, "age": INTEGER}, "name", "age"),
    "optional properties": record({"a": INTEGER, "b": INTEGER, "c": INTEGER}, "b"),
    "properties out of order": record({"b": INTEGER, "a": INTEGER}, "a"),
    "nested objects": record({"a": record({"b": record({"c": {"type": "boolean"}}, "c")}, "b")}, "a"),
    "map": {"type": "object", "additionalProperties": INTEGER},
    "map beside properties": record({"a": INTEGER}, "a", additionalProperties={"type": "boolean"}),
    "map by pattern": {"type": "object", "patternProperties": {"^x-": INTEGER}, "additionalProperties": False},
    "number of properties": {"type": "object", "additionalProperties": INTEGER, "minProperties": 2, "maxProperties": 3},
    "required without a schema": {"type": "object", "required": ["z"], "properties": {"a": INTEGER}},
    "any object": {"type": "object"},
    "anything": {},
    "anything, as a boolean": True,
    "anyOf scalars": {"anyOf": [{"type": "string", "maxLength": 3}, INTEGER]},
    "anyOf objects": {"anyOf": [record({"a": INTEGER}, "a"), record({"b": {"type": "boolean"}}, "b")]},
    "anyOf beside properties": {
        "type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "additionalProperties": False,
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "oneOf scalars": {"oneOf": [{"type": "string", "maxLength": 3}, INTEGER, {"type": "null"}]},
    "oneOf told apart by a constant": {
        "oneOf": [
            record({"kind": {"const": "circle"}, "radius": INTEGER}, "kind", "radius"),
            record({"kind": {"const": "square"}, "side": INTEGER}, "kind", "side"),
        ]
    },
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "allOf bounds": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    "definitions": {**record({"a": {"$ref": "#/definitions/p"}}, "a"), "definitions": {"p": INTEGER}},
    "reference with siblings": {"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer", "maximum": 10}}},
    "anchor": {"$ref": "#here", "$defs": {"p": {"$anchor": "here", "type": "integer"}}},
    "linked list": {"$ref": "#/$defs/node", "$defs": {"node": record({"next": {"anyOf": [{"type": "null"}, NODE]}}, "next")}},
    "tree": record({"value": INTEGER, "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "value"),
    "mutual recursion": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": record({"b": {"$ref": "#/$defs/b"}}),
            "b": record({"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}, "a"),
        },
    },
    "annotations": {"title": "t", "description": "d", "default": 3, "examples": [1], "deprecated": True, **INTEGER},
    "no-op keyword": {"type": "array", "items": INTEGER, "uniqueItems": False},
    "a set of one": {"type": "array", "items": INTEGER, "uniqueItems": True, "maxItems": 1},
    "a set of an enum": {
        "type": "array", "title": "Colors", "items": {"$ref": "#/$defs/Color"}, "uniqueItems": True, "minItems": 1,
        "$defs": {"Color": {"title": "Color", "type": "string", "enum": ["red", "blue", "green", "grey", "pink"]}},
    },
    "a set of two of many": record(
        {"a": {"type": "array", "items": {"enum": [*"abcdefghij"]}, "uniqueItems": True, "maxItems": 2}}, "a"
    ),
    "a set of booleans": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
    "a token": {"type": "string", "format": "jwt", "maxLength": 20},
    "any names": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": INTEGER},
    "listed names": {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER, "required": ["a"]},
    "names of an enum": {
        "propertyNames": {"$ref": "#/$defs/Color"}, "additionalProperties": INTEGER, "minProperties": 1,
        "$defs": {"Color": {"title": "Color", "type": "string", "enum": ["red", "blue"]}},
    },
    "names by a pattern": {"propertyNames": {"pattern": "^a[0-9]$"}, "additionalProperties": INTEGER, "minProperties": 1},
    "names by their length": {
        "propertyNames": {"minLength": 1, "maxLength": 3}, "additionalProperties": INTEGER, "minProperties": 1,
    },
    "names by a least length": {"propertyNames": {"$ref": "#/$defs/x"}, "$defs": {"x": {"minLength": 2}}, "maxProperties": 2},
    "UUIDs as names": {"propertyNames": {"format": "uuid"}, "additionalProperties": INTEGER, "minProperties": 1},
    "an UUID of a version": {"type": "string", "format": "uuid4"},
    "base64": {"anyOf": [{"type": "string", "format": each, "maxLength": 12} for each in ("base64", "base64url", "byte")]},
    "an address of any version": {"type": "string", "format": "ipvanyaddress"},
    "values that are left out": record({"a": {"not": {}}, "b": {"anyOf": [{"not": {}, "title": "t"}, INTEGER]}}, "b"),
    "keywords without effect": {
        "type": "object", "dependencies": {}, "dependentRequired": {}, "dependentSchemas": {}, "unevaluatedProperties": True,
        "maxProperties": 1,
    },
    "decimal": {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "maxLength": 9},
    "decimal with limits": {
        "type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)", "maxLength": 9,
    },
    "formats of any text": {
        "anyOf": [{"type": "string", "format": each, "maxLength": 3} for each in ("password", "binary", "path")],
    },
    "formats of Zod with their patterns": record({
        "starts": {"type": "string", "maxLength": 5, "format": "starts_with", "pattern": "^ab.*"},
        "id": {"type": "string", "format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{21}$"},
        "email": {
            "type": "string", "format": "email", "maxLength": 40,
            "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
        },
    }),
    "one name": {"type": "object", "propertyNames": {"const": "a", "title": "t"}},
    "draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "maxProperties": 0},
}  # fmt: skip


def test_there_are_sixty_schemas():
    assert len(SCHEMAS) >= 60


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_sampled_validates(open_writer, name):
    schema = SCHEMAS[name]
    checker = jsonschema.FormatChecker()

    for seed in range(4):
        text = open_writer("json_schema", json.dumps(schema)).run(Random(seed))

        jsonschema.validate(json.loads(text), schema, format_checker=checker)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "integer"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "uniqueItems": True, "items": {"enum": [*"abcdef"]}}, "uniqueItems"),
        ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 1.0]}}, "uniqueItems"),
        ({"type": "array", "uniqueItems": True, "items": {"enum": ["a" * 600, "b" * 600]}}, "uniqueItems"),
        ({"contains": INTEGER, "minContains": 2}, "contains"),
        ({"if": INTEGER, "then": {"minimum": 1}}, "if, then"),
        ({"propertyNames": {"format": "date"}}, "propertyNames"),
        ({"propertyNames": {"pattern": "^a", "maxLength": 3}}, "propertyNames"),
        ({"propertyNames": {"pattern": "^a"}, "patternProperties": {"a": INTEGER}}, "propertyNames"),
        ({"propertyNames": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": "integer"}}}, "propertyNames"),
        ({"propertyNames": {"$ref": "#/$defs/x"}}, "propertyNames"),
        ({"propertyNames": {"enum": ["a"]}, "properties": {"a": INTEGER}}, "propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        (record({"deep": {"type": "array", "items": {"not": {"type": "null"}}}}), "not"),
        ({"type": "string", "format": "color"}, "color"),
        ({"type": "string", "format": "color", "pattern": 5}, "pattern"),
        ({"type": "string", "format": ["color"], "pattern": "a"}, "format"),
        ({"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]}, "oneOf"),
        ({"type": "string", "pattern": "^(?=a)b"}, "look-ahead"),
        ({"type": "string", "pattern": "(a)\\1"}, "backreferences"),
        ({"type": "string", "pattern": "["}, "unclosed character class"),
        ({"$ref": "http://example.com/schema.json"}, "http://example.com/schema.json"),
        ({"type": "strin"}, "Invalid type: strin"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum (5) is greater than maximum (3)"),
        ({"type": "object", "properties": {"a": INTEGER}, "maxProperties": 0}, "maxProperties"),
        ({"enum": []}, "anyOf is empty"),
        ({"$ref": "#"}, "allows no text"),
        (False, "`false` allows nothing"),
        ({"not": {}}, "`false` allows nothing"),
        ([1], "must be an object or a boolean"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(open_writer, schema, named):
    with pytest.raises(InvalidRequest) as caught:
        open_writer("json_schema", json.dumps(schema))

    assert named in caught.value.message
    assert caught.value.field == "structured_outputs"


def test_text_that_is_no_json_is_refused(open_writer):
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        open_writer("json_schema", "{")


def test_options_in_a_schema_do_not_turn_refusals_off(open_writer):
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True, "coerce_one_of": True}}

    with pytest.raises(InvalidRequest, match="uniqueItems"):
        open_writer("json_schema", json.dumps(schema))


@pytest.mark.parametrize("text", ['{"a":1}', '{"a": 1}', '{\n  "a": 1\n}'])
def test_white_space_as_models_write_it_is_allowed(open_writer, text):
    assert open_writer("json_schema", json.dumps(record({"a": INTEGER}))).takes(text)


@pytest.mark.parametrize("text", ['{"a":  1}', '{\n\n\n"a":1}', ' {"a":1}', '{"a":1} ', '{"a":\n' + " " * 17 + "1}"])
def test_white_space_without_end_is_not(open_writer, text):
    assert not open_writer("json_schema", json.dumps(record({"a": INTEGER}))).takes(text)


def test_white_space_can_be_forbidden_or_given(open_writer):
    schema = json.dumps(record({"a": INTEGER}))
    none = open_writer("json_schema", schema, disable_any_whitespace=True)
    tabs = open_writer("json_schema", schema, whitespace_pattern=r"\t")

    assert none.takes('{"a":1}')
    assert not none.takes('{"a": 1}')
    assert tabs.takes('{\t"a":1}')
    assert not tabs.takes('{"a": 1}')


def test_a_white_space_pattern_that_is_no_pattern_is_refused(open_writer):
    with pytest.raises(InvalidRequest, match="unclosed character class"):
        open_writer("json_object", "", whitespace_pattern="[ ")


def test_objects_can_be_closed_at_every_depth(open_writer):
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"properties": {"b": INTEGER}}]}, "properties": INTEGER}}
    closed = open_writer("json_schema", json.dumps(schema), disable_additional_properties=True)

    assert open_writer("json_schema", json.dumps(schema)).takes('{"z":1}')
    assert closed.takes('{"a":{"b":1},"properties":2}')
    assert not closed.takes('{"z":1}')
    assert not closed.takes('{"a":{"z":1}}')


def test_json_object_is_an_object(open_writer):
    writer = open_writer("json_object", "")

    assert isinstance(json.loads(writer.run(Random(1))), dict)
    assert not writer.takes("[]")
