"""Sampling defaults: the model's recommendations, and the values of --override-generation-config over them."""

import pytest

from tetrad.frontend.request.sampling_defaults import sampling_defaults
from tetrad.services.errors import InvalidRequest


def test_a_models_recommendations_are_the_defaults_and_its_other_keys_are_left_out():
    recommended = {"temperature": 0.6, "top_p": None, "do_sample": True, "eos_token_id": [1, 2]}

    assert sampling_defaults(recommended) == {"temperature": 0.6}


def test_an_override_wins_and_null_takes_a_recommendation_away():
    recommended = {"temperature": 0.6, "top_k": 20}

    assert sampling_defaults(recommended, '{"temperature": 0.1, "top_k": null}') == {"temperature": 0.1}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"n": 2}', '{"temperature": "hot"}', '{"top_p": 7}', pytest.param('{"temperature": ' + "[" * 2000, id="deep")],
)
def test_an_override_that_is_none_is_refused(text):
    with pytest.raises(InvalidRequest):
        sampling_defaults({}, text)
