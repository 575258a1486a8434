"""SamplingParams: vLLM's defaults and error texts."""

import dataclasses

import pytest

from tetrad.frontend.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest


def test_defaults_are_vllms():
    params = SamplingParams()

    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (16, 0, None, None)
    assert (params.detokenize, params.skip_special_tokens, params.ignore_eos) == (True, True, False)
    assert params.output_kind is RequestOutputKind.CUMULATIVE


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 16385}, "n must be at most 16384, got 16385."),
        ({"n": 1.5}, "n must be an integer, got 1.5."),
        ({"n": True}, "n must be an integer, got True."),
        ({"presence_penalty": 2.1}, "presence_penalty must be in [-2, 2], got 2.1."),
        ({"frequency_penalty": -2.1}, "frequency_penalty must be in [-2, 2], got -2.1."),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0."),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be a finite number, got inf."),
        ({"temperature": -0.1}, "temperature must be non-negative, got -0.1."),
        ({"temperature": 2.1}, "temperature must be in [0, 2], got 2.1."),
        ({"temperature": float("nan")}, "temperature must be in [0, 2], got nan."),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'."),
        ({"top_p": 0.0}, "top_p must be in (0, 1], got 0.0."),
        ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2."),
        ({"min_p": 1.1}, "min_p must be in [0, 1], got 1.1."),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1."),
        ({"min_tokens": 17}, "min_tokens must be less than or equal to max_tokens=16, got 17."),
        ({"logprobs": -2}, "logprobs must be non-negative or -1, got -2."),
        ({"prompt_logprobs": -2}, "prompt_logprobs must be non-negative or -1, got -2."),
        ({"stop": ["a", ""]}, "stop cannot contain an empty string."),
        ({"stop": "a", "detokenize": False}, "stop strings are only supported when detokenize is True."),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must contain only integers"),
        ({"bad_words": [""]}, "bad_words cannot contain an empty string."),
        ({"allowed_token_ids": []}, "allowed_token_ids is not None and empty!"),
        ({"logit_bias": {-1: 1.0}}, "token_id(s) [-1] in logit_bias"),
        ({"seed": 2**63}, "seed must fit 64 bits"),
    ],
)
def test_wrong_value_is_named_with_its_limit(fields, text):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)

    assert str(caught.value).startswith(text)
    assert caught.value.field in fields
    assert isinstance(caught.value, ValueError)


def test_greedy_switches_the_filters_off():
    params = SamplingParams(temperature=0, top_p=0.5, top_k=5, min_p=0.5, n=2)

    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_values_are_normalised():
    params = SamplingParams(temperature=0.001, stop="a", seed=-1, logit_bias={1: 500, 2: -500})

    assert (params.temperature, params.stop, params.stops, params.seed) == (0.01, ["a"], ("a",), None)
    assert params.logit_bias == {1: 100.0, 2: -100.0}


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
