"""The arguments of LLM's methods."""

import pytest

from tetrad.library.arguments import tokenization_of
from tetrad.services.errors import InvalidRequest


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"truncation_side": "Right"}, r"truncation_side must be 'left' or 'right', got 'Right'\."),
        ({"truncate_prompt_tokens": "5"}, r"truncate_prompt_tokens must be an integer, got '5'\."),
        ({"add_special_tokens": "no"}, r"add_special_tokens must be a boolean, got 'no'\."),
    ],
)
def test_wrong_options_of_tokenization_are_refused(options, text):
    """A side that is neither "left" nor "right" would silently cut off the other end."""
    with pytest.raises(InvalidRequest, match=text):
        tokenization_of(options)


@pytest.mark.parametrize(
    "options", [None, {}, {"truncate_prompt_tokens": None}, {"truncation_side": None}, {"truncation_side": "right"}]
)
def test_other_options_are_passed_on(options):
    assert tokenization_of(options) == (options or {})
