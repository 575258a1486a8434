"""The sampler's distribution: 20,000 draws against probabilities computed with numpy. Seeds are fixed, so the test is too."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import NewRequest, SamplingSpec
from tetrad.worker_svc.sampler.sampler import Sampler

VOCAB_SIZE = 2000
NUM_ROWS, NUM_STEPS = 500, 40


def exact_probabilities(logits, temperature, top_p, top_k, min_p):
    """Softmax at a temperature; drop below min_p of the largest, keep top_k, keep the least set with top_p of what is left."""
    scaled = logits.astype(np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    probabilities[probabilities < min_p * probabilities.max()] = 0
    order = np.argsort(-probabilities, kind="stable")
    if top_k:
        probabilities[order[top_k:]] = 0
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities[order]) - probabilities[order]
    probabilities[order[before >= top_p]] = 0
    return probabilities / probabilities.sum()


def draw_20000(logits, **fields):
    """Draw at 40 positions of 500 seeds."""
    batch = InputBatch(max_num_seqs=NUM_ROWS, max_model_len=64, block_size=16)
    sampler = Sampler(batch, VOCAB_SIZE)
    for handle in range(NUM_ROWS):
        sampling = SamplingSpec(seed=handle, **fields)
        request = NewRequest(handle, str(handle), np.array([1]), 1, 0, 1, np.zeros((1, 1), np.int64), sampling)
        sampler.add(batch.add(request), request)
    slots = np.array(batch.slots_of(list(range(NUM_ROWS))))
    drawn = []
    for _ in range(NUM_STEPS):
        tokens = sampler.sample(torch.from_numpy(np.tile(logits, (NUM_ROWS, 1))), slots, None).token_ids
        batch.append_sampled(slots, tokens)
        drawn.append(tokens)
    return np.concatenate(drawn)


def chi_square_p(counts, expected):
    """Return the probability of a worse fit by chance; rare ids are counted as one."""
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    present = expected > 0
    statistic = float(((counts[present] - expected[present]) ** 2 / expected[present]).sum())
    halves = torch.tensor([present.sum() - 1, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(halves[0], halves[1]))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.05},
        {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        {"temperature": 1.3, "top_p": 0.8, "top_k": 0, "min_p": 0.0},
    ],
)
def test_20000_draws_follow_the_exact_probabilities(fields):
    logits = np.random.default_rng(7).standard_normal(VOCAB_SIZE).astype(np.float32) * 2
    expected = exact_probabilities(logits, **fields) * NUM_ROWS * NUM_STEPS

    counts = np.bincount(draw_20000(logits, **fields), minlength=VOCAB_SIZE)

    assert counts[expected == 0].sum() == 0
    assert chi_square_p(counts, expected) > 0.001


def test_a_wrong_distribution_is_noticed():
    """The test above can fail: draws at temperature 0.75 do not fit those expected at 0.7."""
    logits = np.random.default_rng(7).standard_normal(VOCAB_SIZE).astype(np.float32) * 2
    fields = {"top_p": 0.9, "top_k": 50, "min_p": 0.05}
    expected = exact_probabilities(logits, temperature=0.7, **fields) * NUM_ROWS * NUM_STEPS

    counts = np.bincount(draw_20000(logits, temperature=0.75, **fields), minlength=VOCAB_SIZE)

    assert chi_square_p(counts, expected) < 0.001
