"""Sampling parameters that no frontend sends: refused alone, before anything is scheduled."""

import math
from contextlib import nullcontext

import pytest

from tetrad.engine_core_svc.core.request import LogprobWidths
from tetrad.engine_core_svc.engine.sampling_wire import MAX_BAD_WORDS, check_sampling, check_score_rows, logprob_widths
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1.types_pb2 import PromptScoreIds, SamplingParams, SpeechRules, TokenIds

VOCAB_SIZE = 1000


def words(*rows):
    return [TokenIds(ids=pack_u32(row)) for row in rows]


def scored(ids, width, start=0):
    return PromptScoreIds(token_ids=pack_u32(ids), width=width, start=start)


OUT_OF_RANGE = [
    {"temperature": math.nan},
    {"temperature": -0.5},
    {"temperature": math.inf},
    {"top_p": 1.5},
    {"top_p": math.nan},
    {"min_p": -0.1},
    {"top_k": -2},
    {"presence_penalty": 2.5},
    {"frequency_penalty": math.nan},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": math.inf},
    {"repetition_penalty": math.nan},
    {"logprobs": 10**9},
    {"logprobs": -2},
    {"prompt_logprobs": VOCAB_SIZE + 1},
    {"min_tokens": 5, "max_tokens": 4},
    {"prompt_score_ids": scored([1, VOCAB_SIZE], 2)},
    {"speech_rules": SpeechRules(suppressed_token_ids=pack_u32([1, VOCAB_SIZE]))},
    {"speech_rules": SpeechRules(suppressed_first_token_ids=pack_u32([VOCAB_SIZE]))},
    {"speech_rules": SpeechRules(first_timestamp_id=VOCAB_SIZE)},
    {"logit_bias": {VOCAB_SIZE: 1.0}},
    {"logit_bias": {1: math.nan}},
    {"logit_bias": {1: 1e9}},
    {"stop_token_ids": [1, 2**32 - 1]},
    {"allowed_token_ids": [VOCAB_SIZE]},
    {"logprob_token_ids": [VOCAB_SIZE]},
    {"thinking_end_token_ids": [VOCAB_SIZE]},
    {"bad_words_token_ids": words([])},
    {"bad_words_token_ids": words([1], [2, VOCAB_SIZE])},
    {"bad_words_token_ids": [TokenIds(ids=b"12345")]},
    {"bad_words_token_ids": words(*([1],) * (MAX_BAD_WORDS + 1))},
]
LIMITS = [
    {},
    {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 1.0, "presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"repetition_penalty": 0.01, "logprobs": -1, "prompt_logprobs": VOCAB_SIZE, "min_tokens": 4, "max_tokens": 4},
    {"logit_bias": {VOCAB_SIZE - 1: -100.0, 0: 100.0}, "stop_token_ids": [VOCAB_SIZE - 1], "min_tokens": 9},
    {"prompt_score_ids": scored([VOCAB_SIZE - 1, 2**32 - 1], 1)},
    {"speech_rules": SpeechRules(suppressed_token_ids=pack_u32([VOCAB_SIZE - 1]), first_timestamp_id=VOCAB_SIZE - 1)},
    {"bad_words_token_ids": words([0], [VOCAB_SIZE - 1, 1]), "thinking_start_token_ids": [5]},
]


@pytest.mark.parametrize("params", OUT_OF_RANGE, ids=lambda params: str(params)[:60])
def test_what_is_out_of_range_is_refused_by_name(params):
    with pytest.raises(InvalidRequest) as caught:
        check_sampling(SamplingParams(**params), eos_token_id=0, vocab_size=VOCAB_SIZE)
    if params != {"bad_words_token_ids": [TokenIds(ids=b"12345")]}:
        assert caught.value.field in params


@pytest.mark.parametrize("params", LIMITS, ids=str)
def test_what_is_at_its_limit_is_taken(params):
    check_sampling(SamplingParams(**params), eos_token_id=0, vocab_size=VOCAB_SIZE)


def test_an_end_of_text_outside_the_vocabulary_matters_where_it_would_be_masked():
    check_sampling(SamplingParams(), eos_token_id=VOCAB_SIZE, vocab_size=VOCAB_SIZE)
    with pytest.raises(InvalidRequest):
        check_sampling(SamplingParams(min_tokens=1), eos_token_id=VOCAB_SIZE, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize(
    ("params", "eos_token_id"),
    [
        ({"allowed_token_ids": [0], "min_tokens": 4}, 0),
        ({"allowed_token_ids": [7, 9], "stop_token_ids": [7, 8, 9], "min_tokens": 1}, None),
        ({"allowed_token_ids": [0, 7], "stop_token_ids": [7], "min_tokens": 1, "ignore_eos": True}, 0),
    ],
)
def test_allowed_ids_that_all_end_the_output_contradict_min_tokens(params, eos_token_id):
    with pytest.raises(InvalidRequest, match=r"allowed_token_ids .* min_tokens=") as caught:
        check_sampling(SamplingParams(**params), eos_token_id=eos_token_id, vocab_size=VOCAB_SIZE)

    assert caught.value.field == "allowed_token_ids"


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": [0]},
        {"allowed_token_ids": [0, 5], "min_tokens": 4},
        {"allowed_token_ids": [0], "min_tokens": 1, "thinking_token_budget": 0, "thinking_end_token_ids": [9]},
    ],
)
def test_allowed_ids_that_leave_a_first_token_are_taken(params):
    check_sampling(SamplingParams(**params), eos_token_id=0, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize(
    ("params", "widths"),
    [
        ({}, (0, 0)),
        ({"logprobs": 0}, (1, 0)),
        ({"logprobs": 3, "prompt_logprobs": 0}, (4, 1)),
        ({"logprobs": -1, "prompt_logprobs": -1}, (1 + VOCAB_SIZE, 1 + VOCAB_SIZE)),
        ({"logprobs": 2, "logprob_token_ids": [4, 5]}, (3, 0)),
        ({"logprob_token_ids": [4, 5, 6]}, (4, 0)),
        ({"prompt_score_ids": scored([4, 5, 6], 3, 7)}, (0, 0, 3, 7)),
    ],
)
def test_widths_of_logprobs_count_the_token_itself(params, widths):
    assert logprob_widths(SamplingParams(**params), VOCAB_SIZE) == LogprobWidths(*widths)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (scored([1, 2], 0), "prompt_score_ids.width"),
        (scored([1, 2, 3], 2), "prompt_score_ids"),
        (scored([], 2), "prompt_score_ids"),
        (PromptScoreIds(token_ids=pack_u32([1, 2]), width=2, num_positions=9), "prompt_score_ids.width"),
    ],
)
def test_score_ids_that_are_no_rows_are_refused(message, field):
    with pytest.raises(InvalidRequest) as caught:
        check_sampling(SamplingParams(prompt_score_ids=message), eos_token_id=0, vocab_size=VOCAB_SIZE)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (scored([1, 2], 2, 3), None),
        (scored([1] * 8, 2, 5), None),
        (scored([1] * 6, 2, 5), "prompt_score_ids"),
        (scored([1], 1, 9), "prompt_score_ids.start"),
    ],
)
def test_score_ids_fit_their_prompt(message, field):
    params = SamplingParams(prompt_score_ids=message)

    with nullcontext() if field is None else pytest.raises(InvalidRequest) as caught:
        check_score_rows(params, num_prompt_tokens=10)

    assert field is None or caught.value.field == field


async def test_a_hostile_request_is_refused_alone_and_costs_no_worker(stack):
    client = await stack.client()
    client.add(1, [1], sampling_params=SamplingParams(temperature=math.nan), request_id="bad")
    client.add(2, [2], max_tokens=5)

    await client.until_finished(2)

    assert client.rejected["bad"].field == "temperature"
    assert client.tokens[2] == [3, 4, 5, 6, 7]
    assert client.notices == []
