"""Regular expressions, choices, grammars and structural tags: the texts they allow, and the errors of bad ones."""

import json
import re
from random import Random

import pytest

from tetrad.services.errors import InvalidRequest

ITEM = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


def allows(writer, *texts):
    return [writer.takes(text) for text in texts]


# --- regular expressions, choices, grammars ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern", [r"[a-z]{3,5}-[0-9]+", r"^(yes|no)$", r"a/b\n?", "é+😀{1,2}", r"(?i)abc", r"(a|b|ab)*c{1,30}"]
)
def test_output_matches_the_regular_expression_as_a_whole(open_writer, pattern):
    for seed in range(3):
        assert re.fullmatch(pattern, open_writer("regex", pattern).run(Random(seed)))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[", "unclosed character class"),
        ("a(?=b)", "look-ahead"),
        (r"(a)\1", "backreferences"),
        ("a{2,1}", "repetition count range"),
        ("(" * 3000 + ")" * 3000, "regex cannot be used"),
        ("", "allows no text at all"),
    ],
)
def test_bad_regular_expressions_are_refused(open_writer, pattern, reason):
    with pytest.raises(InvalidRequest, match=re.escape(reason)) as caught:
        open_writer("regex", pattern)

    assert len(caught.value.message) < 500
    assert "\n" not in caught.value.message


def test_output_is_one_of_the_choices(open_writer):
    choices = ["yes", "no", 'with "quotes" and \\ and\nlines', "é😀", "\x01", "\x7f", "yes and more"]

    texts = {open_writer("choice", json.dumps(choices)).run(Random(seed), closers="") for seed in range(60)}

    assert texts == set(choices)


def test_ten_thousand_choices_are_no_burden(open_writer):
    writer = open_writer("choice", json.dumps([f"number {i}" for i in range(10_000)]))

    assert allows(writer, "number 0", "number 9999", "number 10000") == [True, True, False]


def test_choices_that_are_all_empty_are_refused(open_writer):
    with pytest.raises(InvalidRequest, match="not empty"):
        open_writer("choice", '[""]')


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" ("b" | /[0-9]/)+ end\nend: "!"',
        'start: "a" X+ "!"\nX: /b|[0-9]/',
        '?start: "a" ("b" | /[0-9]/)+ "!"',
        "start[max_tokens=9]: /a[b0-9]+!/",
        'root ::= "a" ("b" | [0-9])+ the-end\nthe-end ::= "!"',
        'root ::= start middle+ "!"  # see below\nstart ::= "a"\nmiddle ::= "b"  # or\n  # a digit\n  | [0-9]',
    ],
)
def test_grammars_may_be_lark_or_ebnf(open_writer, grammar):
    assert allows(open_writer("grammar", grammar), "ab!", "a1b2!", "a!", "ab") == [True, True, False, False]


def test_ebnf_escapes_mean_characters(open_writer):
    assert allows(open_writer("grammar", r'root ::= "\u00e9" [\u4e00-\u9fff]'), "é中", "éa") == [True, False]
    assert allows(open_writer("grammar", r'root ::= "\u0022\[" [^\u0000-\u001F]'), '"[ ', '"[\n') == [True, False]
    assert allows(open_writer("grammar", r'root ::= "\\u0041" [a\-z]'), "\\u0041-", "A-", "\\u0041b") == [True, False, False]


def test_grammars_recurse(open_writer):
    assert allows(open_writer("grammar", 'start: "(" start ")" | "x"'), "((x))", "((x)") == [True, False]


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("hello", "neither Lark"),
        ('root ::= "a', "EBNF"),
        ("root ::= missing", "missing"),
        ("start: missing", "missing"),
        ('start: a\na: a "x"', "no text"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "EBNF"),
        ('root ::= "' + "a" * 70_000 + '"', "65536 characters"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
        ("start: @other", "other"),
    ],
)
def test_bad_grammars_are_refused(open_writer, grammar, reason):
    with pytest.raises(InvalidRequest, match=re.escape(reason)):
        open_writer("grammar", grammar)


# --- structural tags --------------------------------------------------------------------------------------------------


def tag(form):
    return json.dumps({"type": "structural_tag", "format": form})


def call(begin, end="</f>", content=None):
    return {"begin": begin, "content": content or {"type": "json_schema", "json_schema": ITEM}, "end": end}


OLDER = json.dumps({"structures": [{"begin": "<f=a>", "schema": ITEM, "end": "</f>"}], "triggers": ["<f"]})
NEWER = tag({"type": "triggered_tags", "triggers": ["<f"], "tags": [call("<f=a>"), call("<f=b>", ["</f>", "!"])]})


@pytest.mark.parametrize("notation", [OLDER, NEWER])
def test_triggers_begin_calls_in_free_text(open_writer, notation):
    writer = open_writer("structural_tag", notation)

    assert allows(writer, "any <text>\n", '<f=a>{"x":1}</f>', 'so <f=a>{"x": 2}</f> and <f=a>{"x":3}</f>.', "") == [True] * 4
    assert allows(writer, '<f=c>{"x":1}</f>', "<f=a>{}</f>", '<f=a>{"x":1}') == [False] * 3


@pytest.mark.parametrize("triggers", [["<f", "<f=a"], ["<f=a", "<f"]])
def test_a_trigger_that_begins_another_one_hides_no_tag(open_writer, triggers):
    form = {"type": "triggered_tags", "triggers": triggers, "tags": [call("<f=a>"), call("<f=b>")]}
    writer = open_writer("structural_tag", tag(form))

    assert allows(writer, '<f=a>{"x":1}</f>', '<f=b>{"x":1}</f>', "<f=c>") == [True, True, False]


def test_each_tag_has_its_own_ends(open_writer):
    assert allows(open_writer("structural_tag", NEWER), '<f=b>{"x":1}!', '<f=a>{"x":1}!') == [True, False]


@pytest.mark.parametrize(
    ("options", "none", "one", "two"),
    [
        ({}, True, True, True),
        ({"at_least_one": True}, False, True, True),
        ({"stop_after_first": True}, True, True, False),
        ({"at_least_one": True, "stop_after_first": True}, False, True, False),
    ],
)
def test_number_of_calls(open_writer, options, none, one, two):
    form = {"type": "triggered_tags", "triggers": ["<f"], "tags": [call("<f>")], **options}
    text = '<f>{"x":1}</f>'

    assert allows(open_writer("structural_tag", tag(form)), "no", text, text + text) == [none, one, two]


def test_text_before_the_only_call_holds_no_other_call(open_writer):
    form = {"type": "triggered_tags", "triggers": ["<f"], "tags": [call("<f>")], "stop_after_first": True}
    writer = open_writer("structural_tag", tag(form))

    assert allows(writer, 'so <f>{"x":1}</f>', "so <f>{}</f>", "so <f", 'so <f>{"x":1}</f> and') == [True, False, False, False]


def test_separated_calls(open_writer):
    form = {"type": "tags_with_separator", "separator": ", ", "tags": [call("<f>")], "at_least_one": True}
    text = '<f>{"x":1}</f>'

    assert allows(open_writer("structural_tag", tag(form)), text, f"{text}, {text}", text * 2, "") == [True, True, False, False]


def test_sequences_choices_and_literals(open_writer):
    form = {
        "type": "sequence",
        "elements": [
            {"type": "or", "elements": [{"type": "const_string", "value": "A"}, {"type": "regex", "pattern": "[0-9]/"}]},
            {"type": "any_text"},
            {"type": "tag", **call("<f>", content={"type": "any_text"})},
            {"type": "any_text"},
        ],
    }

    writer = open_writer("structural_tag", tag(form))

    assert allows(writer, "A text <f> inside </f> after", "7/<f></f>", "B<f></f>", "A text") == [True, True, False, False]


def test_special_tokens_are_named_where_a_literal_holds_them(open_writer, vocabulary):
    form = {"type": "triggered_tags", "triggers": ["<|call|>"], "tags": [call("<|call|>go ", "")]}
    writer = open_writer("structural_tag", tag(form))

    writer.write_text("I will ")
    writer.write(vocabulary.special_tokens["<|call|>"])

    assert writer.takes('go {"x":1}')
    assert not writer.takes("stay")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be an object"),
        ("{}", "format of structural_tag"),
        (tag({"type": "qwen_xml_parameter"}), "qwen_xml_parameter"),
        (tag({"type": "const_string"}), "value of const_string"),
        (tag({"type": "triggered_tags", "triggers": ["<g"], "tags": [call("<f>")]}), "No trigger"),
        (
            tag({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex", "pattern": "a"}]}),
            "any_text in a sequence",
        ),
        (tag({"type": "tag", **call("<f>", content={"type": "json_schema", "json_schema": {"not": {}}})}), "not"),
        (tag({"type": "tag", "begin": "<f>", "content": {"type": "any_text"}, "end": ""}), "end that is not empty"),
        (json.dumps({"structures": [{"begin": "<f>"}], "triggers": ["<f"]}), "begin, schema and end"),
        (json.dumps({"structures": [], "triggers": ["<f"]}), "tags of triggered_tags must not be empty"),
    ],
)
def test_bad_structural_tags_are_refused(open_writer, text, reason):
    with pytest.raises(InvalidRequest, match=re.escape(reason)):
        open_writer("structural_tag", text)
