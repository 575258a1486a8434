"""Log-probabilities and ranks of sampled and chosen tokens."""

import numpy as np
import pytest
import torch

from tests.worker_svc.sampler.sampler_bench import Bench, V, peaks, spec


def test_logprobs_are_those_of_the_raw_distribution():
    logits = peaks(_5=3, _6=2, _7=1)
    bench = Bench((spec(), [1], []), (spec(logit_bias={6: 50.0}, num_logprobs=2), [1], []))

    sampled = bench.sample([logits] * 2)

    raw = torch.tensor(logits).log_softmax(0).numpy()
    [(rows, found)] = sampled.logprobs
    assert rows.tolist() == [1]
    assert found.token_ids.tolist() == [[6, 5, 6]]
    np.testing.assert_allclose(found.logprobs, [raw[[6, 5, 6]]], rtol=1e-6)
    assert found.ranks.tolist() == [2]


def test_logprobs_of_the_whole_vocabulary():
    bench = Bench((spec(num_logprobs=-1), [1], []))

    [(_, rows)] = bench.sample(np.arange(V)).logprobs

    assert rows.token_ids[0, 1:].tolist() == list(range(V - 1, -1, -1))
    assert np.exp(rows.logprobs[0, 1:]).sum() == pytest.approx(1.0, abs=1e-5)


def test_each_row_costs_the_logprobs_it_asked_for():
    specs = [spec(num_logprobs=1), spec(num_logprobs=-1), spec(), spec(num_logprobs=0), spec(num_logprobs=1)]
    bench = Bench(*((each, [1], []) for each in specs))

    found = bench.sample([np.arange(V)] * 5).logprobs

    assert [(rows.tolist(), each.token_ids.shape) for rows, each in found] == [
        ([0, 4], (2, 2)),
        ([1], (1, V + 1)),
        ([3], (1, 1)),
    ]


def test_logprobs_of_chosen_ids_stand_in_their_order():
    logits = peaks(_5=3, _6=2, _7=1)
    bench = Bench((spec(logprob_token_ids=(7, 40)), [1], []), (spec(num_logprobs=1, logprob_token_ids=(6, 5)), [1], []))

    [(rows, found)] = bench.sample([logits] * 2).logprobs

    raw = torch.tensor(logits).log_softmax(0).numpy()
    assert rows.tolist() == [0, 1]
    assert found.token_ids.tolist() == [[5, 7, 40], [5, 6, 5]]
    np.testing.assert_allclose(found.logprobs, raw[found.token_ids.astype(int)], rtol=1e-6)
    assert found.ranks.tolist() == [1, 1]


@pytest.mark.parametrize(("bias", "rank"), [({5: 0.0}, 1), ({6: 50.0}, 2), ({8: 50.0}, 4), ({9: 50.0}, 4), ({40: 50.0}, 6)])
@pytest.mark.parametrize("num_logprobs", [0, 2, -1])
def test_rank_counts_the_tokens_that_are_more_likely(bias, rank, num_logprobs):
    logits = peaks(_5=5, _6=4, _7=3, _8=2, _9=2)

    [(_, found)] = Bench((spec(logit_bias=bias, num_logprobs=num_logprobs), [1], [])).sample(logits).logprobs

    assert found.ranks.tolist() == [rank]
