"""Truncation by min_p, top_k and top_p, against sorting the vocabulary."""

import numpy as np
import pytest
import torch

from tests.worker_svc.sampler.sampler_bench import V
from tetrad.worker_svc.sampler.draw import block_sums
from tetrad.worker_svc.sampler.truncation import TruncationRows, truncate


def kept_by_reference(logits, top_k, top_p, min_p):
    """Return the ids that may be drawn: sort, cut by min_p, then k, then p, keep ties with the last one kept."""
    weights = np.exp((logits - logits.max()).astype(np.float64)).astype(np.float32).astype(np.float64)
    order = [i for i in np.argsort(-weights, kind="stable") if weights[i] >= np.float32(min_p)]
    if top_k:
        order = [i for i in order if weights[i] >= weights[order[min(top_k, len(order)) - 1]]]
    if top_p < 1:
        total, mass, kept = sum(weights[order]), 0.0, []
        for i in order:
            if mass >= top_p * total:
                break
            kept.append(i)
            mass += weights[i]
        order = [i for i in order if weights[i] >= weights[kept[-1]]]
    return set(order)


def kept_ids(weights, *params):
    """Return the ids that each row of weights keeps; checks that the sums of blocks are those of what is kept."""
    sums = block_sums(weights)
    thresholds = truncate(weights, sums, TruncationRows(*(np.array(column) for column in zip(*params, strict=True))))
    kept = np.where(weights.numpy() >= thresholds[:, None], weights.numpy(), 0)
    np.testing.assert_allclose(sums, block_sums(torch.from_numpy(kept)), rtol=1e-5)
    return [set(np.flatnonzero(row).tolist()) for row in kept]


@pytest.mark.parametrize("vocab_size", [V, 700, 6000])
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        *[(0, 1.0, 0.0), (1, 1.0, 0.0), (5, 1.0, 0.0), (400, 1.0, 0.0), (10**6, 0.9, 0.0), (0, 0.5, 0.0), (0, 0.95, 0.0)],
        *[
            (0, 0.0001, 0.0),
            (0, 0.9999, 0.0),
            (5000, 1.0, 0.0),
            (0, 1.0, 0.3),
            (0, 1.0, 1.0),
            (30, 0.8, 0.0),
            (300, 0.8, 0.01),
            (0, 0.9, 0.02),
            (20, 0.7, 0.1),
        ],
    ],
)
def test_truncation_keeps_what_the_reference_keeps(vocab_size, scale, top_k, top_p, min_p):
    logits = (np.random.default_rng(vocab_size).standard_normal(vocab_size) * scale).astype(np.float32)
    weights = (torch.from_numpy(logits) - float(logits.max())).double().exp().float()[None]

    assert kept_ids(weights, (top_k, top_p, min_p)) == [kept_by_reference(logits, top_k, top_p, min_p)]


def test_truncation_keeps_ties_with_the_last_token():
    assert kept_ids(torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.1]]), (2, 1.0, 0.0)) == [{0, 1, 2, 3}]


def test_rows_are_truncated_each_by_its_own_parameters():
    """Flat and peaked rows, wide and narrow candidate sets, and rows that cut nothing, in one batch."""
    rng = np.random.default_rng(5)
    scales = [0.0, 0.01, 0.5, 2.0, 4.0, 8.0]
    params = [
        (0, 1.0, 0.0),
        (0, 0.97, 0.0),
        (3, 1.0, 0.0),
        (9000, 0.5, 0.0),
        (0, 0.9, 0.3),
        (50, 0.9, 0.05),
        (10**9, 1.0, 1e-6),
    ]
    cases = [(scale, each) for scale in scales for each in params]
    logits = np.stack([rng.standard_normal(10_000) * scale for scale, _ in cases]).astype(np.float32)
    weights = torch.from_numpy(np.exp((logits - logits.max(1, keepdims=True)).astype(np.float64)).astype(np.float32))

    found = kept_ids(weights, *(each for _, each in cases))

    assert found == [kept_by_reference(row, *each) for row, (_, each) in zip(logits, cases, strict=True)]


@pytest.mark.parametrize("neighbour", [(10, 1.0, 0.0), (3000, 1.0, 0.0), (60_000, 1.0, 0.0)])
@pytest.mark.parametrize("params", [(1000, 1.0, 0.0), (2000, 0.9, 0.0), (5000, 1.0, 0.0), (0, 0.2, 0.0), (0, 1.0, 0.7)])
def test_other_rows_do_not_change_a_bit_of_a_rows_result(params, neighbour):
    """A neighbour's top_k must not decide whether a row is wide: the sums of a wide row are rounded differently."""
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((2, 65_536)) * 0.05).astype(np.float32)
    weights = torch.from_numpy(np.exp(logits - logits.max(1, keepdims=True)))

    def run(*columns):
        its = weights[: len(columns)].clone()
        sums = block_sums(its)
        thresholds = truncate(its, sums, TruncationRows(*(np.array(column) for column in zip(*columns, strict=True))))
        return thresholds[0], sums[0].tobytes()

    assert run(params, neighbour) == run(params)
