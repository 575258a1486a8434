"""The values that requests get as log-probabilities: raw or processed ones, log-probabilities or logits."""

import numpy as np
import pytest
import torch

from tests.worker_svc.sampler.sampler_bench import Bench, V, peaks, spec
from tetrad.services.errors import Unsupported
from tetrad.worker_svc.api.load_wire import decode_logprobs_mode
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.sampler_options import LogprobsMode
from tetrad.worker_svc.runner.prompt_logprobs import PromptChunk, collect, prompt_failures

LOGITS = peaks(_5=3, _6=2, _7=1)
PROCESSED = (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)


def drawn(**fields):
    return SamplingSpec(**{"seed": 1, "num_logprobs": 3} | fields)


def values_of(mode, *rows, logits=LOGITS):
    """Return {id: value} of each row, by the candidates that it asked for."""
    sampled = Bench(*((each, [1], []) for each in rows), mode=mode).sample([logits] * len(rows))
    assert not sampled.failures
    found = {}
    for indices, columns in sampled.logprobs:
        for row, ids, values in zip(indices.tolist(), columns.token_ids.tolist(), columns.logprobs.tolist(), strict=True):
            found[row] = dict(zip(ids, values, strict=True))
    return [found[row] for row in sorted(found)]


def test_raw_logits_are_those_of_the_model():
    [found] = values_of(LogprobsMode.RAW_LOGITS, drawn(temperature=0.5, top_k=2, logit_bias={6: 9.0}))

    assert {each: found[each] for each in (5, 6, 7)} == {5: 3.0, 6: 2.0, 7: 1.0}


def test_processed_logits_are_divided_by_the_temperature_and_cut():
    [found] = values_of(LogprobsMode.PROCESSED_LOGITS, drawn(temperature=0.5, top_k=2, logprob_token_ids=(5, 6, 7, 8)))

    assert {each: found[each] for each in (5, 6, 7, 8)} == {5: 6.0, 6: 4.0, 7: -np.inf, 8: -np.inf}


@pytest.mark.parametrize("fields", [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.3}], ids=str)
def test_processed_logprobs_are_those_of_the_draw(fields):
    [found] = values_of(LogprobsMode.PROCESSED_LOGPROBS, drawn(logprob_token_ids=tuple(range(V)), **fields))

    kept = torch.tensor([3.0, 2.0]).log_softmax(0).tolist()
    assert [found[5], found[6]] == pytest.approx(kept)
    assert {found[each] for each in range(V) if each not in (5, 6)} == {-np.inf}


def test_values_below_the_precision_of_weights_stay():
    [found] = values_of(LogprobsMode.PROCESSED_LOGPROBS, drawn(temperature=0.01, logprob_token_ids=(5, 7)))

    assert found[7] == pytest.approx(-200.0)


@pytest.mark.parametrize("mode", PROCESSED)
def test_processed_values_of_greedy_rows_have_no_temperature(mode):
    biased = spec(logit_bias={6: 5.0}, num_logprobs=3)

    [found] = values_of(mode, biased)

    changed = torch.tensor(peaks(_5=3, _6=7, _7=1))
    expected = changed if mode.has_logits else changed.log_softmax(0)
    assert {each: found[each] for each in (5, 6, 7)} == pytest.approx({each: float(expected[each]) for each in (5, 6, 7)})


@pytest.mark.parametrize("mode", LogprobsMode)
def test_a_row_has_the_same_values_in_a_batch(mode):
    rows = [spec(num_logprobs=2), drawn(top_k=3), spec(), drawn(temperature=2.0, top_p=0.5), drawn(num_logprobs=None)]

    together = values_of(mode, *rows)

    assert together == [found for row in rows for found in values_of(mode, row)]


@pytest.mark.parametrize("mode", LogprobsMode)
def test_tokens_are_the_same_in_all_modes(mode):
    rows = [(drawn(seed=seed), [1], []) for seed in range(8)]

    tokens = Bench(*rows, mode=mode).sample([LOGITS] * 8).token_ids

    assert tokens.tolist() == Bench(*rows).sample([LOGITS] * 8).token_ids.tolist()


def test_masked_ids_are_impossible_where_values_are_processed():
    allowed = spec(allowed_token_ids=(6, 7), logprob_token_ids=(5, 6))

    [processed], [raw] = (values_of(mode, allowed) for mode in (PROCESSED[0], LogprobsMode.RAW_LOGPROBS))

    assert processed[5] == -np.inf
    assert raw[5] > raw[6]


def test_prompts_have_logits_in_the_modes_of_logits():
    chunk = PromptChunk(7, 0, 0, np.array([5, 6]), num_top=1, gathered=[], last_position=2)

    [found] = collect([chunk], torch.tensor(np.array([LOGITS, LOGITS])), lambda hidden, _: hidden, has_logits=True)

    assert found.rows.logprobs.tolist() == [[3.0, 3.0], [2.0, 3.0]]
    assert found.rows.token_ids.tolist() == [[5, 5], [6, 5]]


@pytest.mark.parametrize("logit", [np.nan, np.inf])
def test_a_logit_of_a_prompt_that_is_no_number_fails_its_request(logit):
    chunk = PromptChunk(7, 0, 0, np.array([5]), num_top=1, gathered=[], last_position=1)

    found = collect([chunk], torch.tensor(peaks(_5=logit))[None], lambda hidden, _: hidden, has_logits=True)

    assert [handle for handle, _ in prompt_failures(found)] == [7]


def test_an_unknown_mode_is_refused_by_its_name():
    assert decode_logprobs_mode("") == LogprobsMode.RAW_LOGPROBS
    with pytest.raises(Unsupported, match="logprobs_mode 'cooked' is not supported; use one of raw_logprobs, processed"):
        decode_logprobs_mode("cooked")


def test_requests_without_logprobs_pay_nothing():
    bench = Bench((drawn(num_logprobs=None), [1], []), mode=LogprobsMode.PROCESSED_LOGPROBS)

    assert bench.sample([LOGITS]).logprobs == ()
