"""The arguments of LLM's methods."""

import pytest

from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.library.arguments import pooling_params_of, tokenization_of
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


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (SamplingParams(), "pooling_params must be a PoolingParams or a list with one per prompt, got SamplingParams"),
        ({"task": "embed"}, "pooling_params must be a PoolingParams or a list with one per prompt, got dict"),
        ([PoolingParams(), "embed"], r"pooling_params\[1\] must be a PoolingParams, got str"),
    ],
)
def test_other_values_than_pooling_params_are_named(given, text):
    with pytest.raises(TypeError, match=text):
        pooling_params_of(given, 2)


def test_each_prompt_has_its_pooling_params():
    first, second = PoolingParams(task="embed"), PoolingParams()

    assert pooling_params_of(None, 2) == [PoolingParams(), PoolingParams()]
    assert pooling_params_of(first, 2) == [first, first]
    assert pooling_params_of([first, second], 2) == [first, second]
    with pytest.raises(InvalidRequest, match=r"prompts \(3\) and pooling_params \(2\) must be the same"):
        pooling_params_of([first, second], 3)
