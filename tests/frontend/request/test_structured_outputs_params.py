"""StructuredOutputsParams: where a constraint begins."""

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
    ],
)
def test_marks_are_a_few_ids(name, ids, text):
    with pytest.raises(InvalidRequest, match=rf"structured_outputs\.{name} {text}") as caught:
        StructuredOutputsParams(**{"regex": "a", "start_after_token_ids": [1], name: ids})

    assert caught.value.field == "structured_outputs"


def test_what_is_opened_has_an_end():
    with pytest.raises(InvalidRequest, match="opening_token_ids needs start_after_token_ids"):
        StructuredOutputsParams(regex="a", opening_token_ids=[1])
