"""StructuredOutputsParams: where a constraint begins, and the types of its values."""

import pytest

from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest


@pytest.mark.parametrize("name", ["start_after_token_ids", "opening_token_ids"])
@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], "must hold 1 to 64 ids, got 0"),
        ([5] * 65, "must hold 1 to 64 ids, got 65"),
        ([-1], "must contain token ids, got -1"),
        ([True], "must contain token ids, got True"),
        (["a"], "must contain token ids, got 'a'"),
        (5, "must be a list of token ids, got 5"),
    ],
)
def test_marks_are_a_few_ids(name, ids, text):
    with pytest.raises(InvalidRequest, match=rf"structured_outputs\.{name} {text}") as caught:
        StructuredOutputsParams(**{"regex": "a", "start_after_token_ids": [1], name: ids})

    assert caught.value.field == "structured_outputs"


def test_what_is_opened_has_an_end():
    with pytest.raises(InvalidRequest, match="opening_token_ids needs start_after_token_ids"):
        StructuredOutputsParams(regex="a", opening_token_ids=[1])


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"regex": 3}, r"regex must be a string, got 3\."),
        ({"grammar": ["a"]}, r"grammar must be a string, got \['a'\]\."),
        ({"choice": "yes"}, r"choice must be a list of strings, got 'yes'\."),
        ({"choice": ["yes", 1]}, r"choice\[1\] must be a string, got 1\."),
        ({"choice": ["a\ud800"]}, r"choice\[0\] contains the lone surrogate U\+D800 at character 1"),
        ({"regex": "\ud800"}, r"regex contains the lone surrogate U\+D800 at character 0"),
        ({"json": InvalidRequest}, "json must be a JSON schema, as text or dict; it contains <class"),
        ({"json": {"type": "object", "enum": [{1}]}}, r"json must be a JSON schema, as text or dict; it contains \{1\}"),
        ({"json": '"\ud800"'}, r"json contains the lone surrogate U\+D800 at character 1"),
        ({"json_object": True, "whitespace_pattern": 1}, r"whitespace_pattern must be a string, got 1\."),
    ],
)
def test_texts_of_constraints_are_valid_text(constraint, text):
    with pytest.raises(InvalidRequest, match=rf"structured_outputs\.{text}") as caught:
        StructuredOutputsParams(**constraint)

    assert caught.value.field == "structured_outputs"
