"""SamplingParams: every field's default, a valid edge, and the errors of wrong values, in vLLM's words.

tests/e2e/test_sampling.py shows the effect of each field over the whole stack; limits of a server and a model are at the end.
"""

import dataclasses
from types import SimpleNamespace

import pytest

from tests.frontend.request.sampling_table import TABLE
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.limits import Limits
from tetrad.frontend.request.sampling_params import RepetitionDetection, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest


def test_the_table_has_every_field():
    assert set(TABLE) == {field.name for field in dataclasses.fields(SamplingParams) if field.init}


@pytest.mark.parametrize("name", TABLE)
def test_default(name):
    assert getattr(SamplingParams(), name) == TABLE[name][0]


@pytest.mark.parametrize(("name", "given", "kept"), [(name, *edge) for name, row in TABLE.items() for edge in row[1]])
def test_edge_is_accepted(name, given, kept):
    assert getattr(SamplingParams(**{name: given}), name) == kept


@pytest.mark.parametrize(("name", "value", "text"), [(name, *wrong) for name, row in TABLE.items() for wrong in row[2]])
def test_wrong_value_is_named_with_its_limit(name, value, text):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})

    assert str(caught.value) == text
    assert caught.value.field == name
    assert isinstance(caught.value, ValueError)


def test_stop_strings_need_text():
    text = "stop strings are only supported when detokenize is True. Set detokenize=True to use stop."
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(stop="a", detokenize=False)

    assert str(caught.value) == text


def test_logprobs_of_a_prompt_need_all_of_it_computed():
    with pytest.raises(InvalidRequest, match="skip_reading_prefix_cache must not be False with prompt_logprobs"):
        SamplingParams(prompt_logprobs=1, skip_reading_prefix_cache=False)

    assert SamplingParams(prompt_logprobs=1, skip_reading_prefix_cache=True).prompt_logprobs == 1


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((4, 1, 1), "repetition_detection.min_count must be at least 2, got 1."),
        ((4, 5, 2), "repetition_detection.min_pattern_size must be in [0, max_pattern_size=4], got 5."),
        ((4, -1, 2), "repetition_detection.min_pattern_size must be in [0, max_pattern_size=4], got -1."),
        ((1025, 1, 2), "repetition_detection.max_pattern_size must be at most 1024, got 1025."),
        ((1.0, 1, 2), "repetition_detection.max_pattern_size must be an integer, got 1.0."),
    ],
)
def test_repetition_detection_is_checked(sizes, text):
    with pytest.raises(InvalidRequest) as caught:
        RepetitionDetection(*sizes)

    assert str(caught.value) == text


def test_repetition_detection_may_be_off():
    assert RepetitionDetection() == RepetitionDetection(0, 0, 0)


def test_logprobs_of_chosen_ids_take_the_place_of_the_top_ones():
    assert SamplingParams(logprob_token_ids=[7, 8, 9]).logprobs == 3


def test_greedy_switches_the_filters_off():
    params = SamplingParams(temperature=0, top_p=0.5, top_k=5, min_p=0.5, n=2)

    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_clone_is_independent_and_equal():
    params = SamplingParams(stop=["a"])
    copy = params.clone()
    copy.stop.append("b")

    assert params.stop == ["a"]
    assert dataclasses.replace(params) == params


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "none are specified"),
        ({"regex": "a", "json": "{}"}, "multiple are specified"),
        ({"choice": []}, "choice cannot be empty"),
        ({"json_object": False}, "json_object cannot be empty"),
        ({"regex": "\0"}, "NUL"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": "[" * 70 + "]" * 70}, "deeper than 64"),
    ],
)
def test_structured_outputs_need_one_constraint_that_is_not_empty(fields, text):
    with pytest.raises(InvalidRequest, match=text):
        StructuredOutputsParams(**fields)


# --- Limits of a server and a model ---


@pytest.fixture
def limits():
    return Limits(FrontendSettings(max_n=8), context=SimpleNamespace(max_model_len=100), vocab_size=50)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"n": 9}, "n must be at most 8, got 9."),
        ({"logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20"),
        ({"logprobs": -1}, "Requested sample logprobs of 50, which is greater than max allowed: 20"),
        ({"prompt_logprobs": 21}, "Requested prompt logprobs of 21, which is greater than max allowed: 20"),
        (
            {"prompt_logprob_token_ids": [[1], list(range(21))]},
            "Requested prompt logprobs of 21, which is greater than max allowed: 20",
        ),
        (
            {"prompt_logprob_token_ids": [[1], [50]]},
            "token_id(s) [50] in prompt_logprob_token_ids contain out-of-vocab token ids. Vocabulary size: 50",
        ),
        ({"stop": ["a"] * 65}, "stop may hold at most 64 strings, got 65."),
        ({"stop": "a" * 1025}, "A stop string may have at most 1024 characters, got 1025."),
        ({"bad_words": ["a"] * 129}, "bad_words may hold at most 128 words, got 129."),
        ({"logit_bias": {50: 1.0}}, "token_id(s) [50] in logit_bias contain out-of-vocab token ids. Vocabulary size: 50"),
        ({"stop_token_ids": [50]}, "token_id(s) [50] in stop_token_ids contain out-of-vocab token ids. Vocabulary size: 50"),
        (
            {"allowed_token_ids": [50]},
            "token_id(s) [50] in allowed_token_ids contain out-of-vocab token ids. Vocabulary size: 50",
        ),
        (
            {"logprob_token_ids": [50]},
            "token_id(s) [50] in logprob_token_ids contain out-of-vocab token ids. Vocabulary size: 50",
        ),
    ],
)
def test_what_a_server_refuses(limits, fields, text):
    with pytest.raises(InvalidRequest) as caught:
        limits.check_params(SamplingParams(**fields))

    assert str(caught.value) == text
    assert caught.value.field in fields


def test_what_a_server_accepts(limits):
    edges = {
        "n": 8,
        "logprobs": 20,
        "prompt_logprobs": 20,
        "stop": ["a"] * 4,
        "bad_words": ["a"] * 128,
        "logit_bias": {49: 1.0},
    }

    limits.check_params(SamplingParams(**edges))
    limits.check_params(SamplingParams(logprob_token_ids=list(range(50))))


def test_a_server_without_a_cap_gives_logprobs_of_the_whole_vocabulary_and_no_more():
    limits = Limits(FrontendSettings(max_logprobs=-1), context=SimpleNamespace(max_model_len=100), vocab_size=50)
    limits.check_params(SamplingParams(logprobs=-1, prompt_logprobs=50))

    with pytest.raises(InvalidRequest, match="Requested sample logprobs of 51, which is greater than max allowed: 50"):
        limits.check_params(SamplingParams(logprobs=51))


@pytest.mark.parametrize(
    ("params", "num_prompt_tokens", "field"),
    [
        ({"n": 11, "logprobs": -1}, 10, "logprobs"),
        ({"prompt_logprobs": 200}, 502, "prompt_logprobs"),
        ({"n": 2, "logprobs": 200, "prompt_logprobs": -1}, 310, "prompt_logprobs"),
    ],
)
def test_an_answer_with_too_many_logprobs_is_refused_with_their_number_and_the_limit(params, num_prompt_tokens, field):
    limits = Limits(
        FrontendSettings(max_logprobs=-1, max_answer_logprobs=100_000),
        context=SimpleNamespace(max_model_len=1000),
        vocab_size=320,
    )

    with pytest.raises(InvalidRequest, match=r"would have \d{6} log-probabilities .* the limit is 100000") as refusal:
        limits.check_answer_logprobs(SamplingParams(**params), num_prompt_tokens=num_prompt_tokens, max_tokens=30)

    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("params", "most"),
    [
        ({"n": 10, "logprobs": -1}, 100_000),
        ({"n": 1024, "logprobs": 128, "prompt_logprobs": 128}, 100_000),
        ({"n": 1024, "logprobs": -1}, 0),
    ],
    ids=["at the limit", "few a token", "no limit"],
)
def test_other_answers_have_as_many_logprobs_as_they_ask_for(params, most):
    limits = Limits(
        FrontendSettings(max_logprobs=-1, max_answer_logprobs=most), context=SimpleNamespace(max_model_len=1000), vocab_size=320
    )

    limits.check_answer_logprobs(SamplingParams(**params), num_prompt_tokens=300, max_tokens=30)


@pytest.mark.parametrize(("asked", "resolved"), [(None, 90), (5, 5), (1000, 90)])
def test_max_tokens_end_with_the_context(limits, asked, resolved):
    assert limits.resolve_max_tokens(SamplingParams(max_tokens=asked), num_prompt_tokens=10) == resolved
