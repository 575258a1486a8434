"""PredictedText: follows an output through a predicted text, past differences."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tetrad.services.predicted_text import PredictedText

TEXT = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("output", "expected", "num_found"),
    [
        ([], [1, 2, 3], 0),
        ([1, 2], [3, 4, 5], 2),
        ([1, 9], [], 1),
        ([1, 9, 9, 5, 6], [7, 8], 3),
        ([1, 2, 5, 6], [7, 8], 4),
        ([7, 8, 1, 2], [3, 4, 5], 2),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], [], 8),
    ],
    ids=["nothing yet", "as predicted", "a difference", "behind an insertion", "behind an omission", "back", "longer"],
)  # fmt: skip
def test_the_text_goes_on_where_the_output_is(output, expected, num_found):
    text = PredictedText(TEXT)
    text.follow(output)

    assert list(text.expected(3)) == expected
    assert (text.num_found, text.num_missing) == (num_found, len(TEXT) - num_found)


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=40), st.integers(0, 40))
@example([1, 1, 0], [1, 0], 0)
def test_no_token_is_found_twice_and_pieces_of_an_output_count_as_the_whole(predicted, output, cut):
    whole, pieces = PredictedText(predicted), PredictedText(predicted)
    whole.follow(output)
    pieces.follow(output[:cut])
    pieces.follow(output[cut:])

    assert 0 <= whole.num_found <= min(len(predicted), len(output))
    assert (pieces.num_found, list(pieces.expected(5))) == (whole.num_found, list(whole.expected(5)))
