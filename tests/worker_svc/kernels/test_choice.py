"""Argmax, draw, truncation and logprobs: each kernel equals its reference, over odd vocabularies, ties and -inf."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels import argmax, draw, logprobs, philox, truncation
from tetrad.worker_svc.sampler.philox import uniforms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INF = float("inf")


def normal(*shape, scale=3.0, dtype=torch.float32):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(3)) * scale).to(DEVICE, dtype)


def on_device(values, dtype):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


# --- Philox ---


@triton.jit
def uniforms_kernel(seeds, positions, streams, out, count, block: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, block)
    found = philox.uniform(tl.load(seeds + row), tl.load(positions + row), tl.load(streams + row), at)
    tl.store(out + row * count + at, found, mask=at < count)


def test_uniforms_are_the_hosts():
    columns = [[1, -5, 2**62, 0], [7, 8, 2**32 - 1, 0], [0, 3, 2**32 - 1, 1]]
    out = torch.empty(4, 5, dtype=torch.float64, device=DEVICE)

    uniforms_kernel[(4,)](*(on_device(column, torch.int64) for column in columns), out, 5, block=8)

    assert out.tolist() == uniforms(*(np.array(column) for column in columns), 5).tolist()


# --- Argmax ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab_size"), [(0, 5), (1, 1), (3, 50), (2, 8193)])
def test_argmax(rows, vocab_size, dtype):
    # A view of wider rows, and many ties.
    logits = normal(rows, vocab_size + 3, dtype=dtype).round()[:, :vocab_size]

    assert torch.equal(argmax.argmax(logits), argmax.argmax_reference(logits))


@pytest.mark.parametrize(
    ("row", "token_id", "largest"),
    [
        ([-INF, 2.0, 5.0, 5.0], 2, 5.0),
        ([-INF] * 4, 0, -INF),
        ([1.0, INF, INF, 0.0], 1, INF),
        ([-0.0, 0.0, -1.0, -2.0], 0, 0.0),
    ],
)
def test_argmax_takes_the_lowest_id_on_ties(row, token_id, largest):
    ids, logits = argmax.argmax(on_device([row], torch.float32))

    assert (ids.item(), logits.view(torch.float32).item()) == (token_id, largest)


@pytest.mark.parametrize(("ids", "found"), [([5, 8197], 5), ([8197], 8197)])
def test_argmax_takes_the_lowest_id_of_those_that_one_lane_sees(ids, found):
    logits = torch.zeros(1, 8200, device=DEVICE)
    logits[0, ids] = 1.0

    assert argmax.argmax(logits)[0].tolist() == [found]


def test_argmax_tells_of_a_nan():
    [token_id], largest = argmax.argmax(on_device([[3.0, float("nan"), 5.0]], torch.float32))

    assert 0 <= token_id < 3
    assert largest.view(torch.float32).isnan().all()


# --- Draw ---


class Rows:
    """Logits and parameters of rows, those of row r in a slot of another number."""

    def __init__(self, logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
        self.logits = logits
        num_rows = len(logits)
        self.slots = torch.arange(num_rows, device=DEVICE).flip(0)

        def column(values, dtype):
            return torch.broadcast_to(on_device(values, dtype), (num_rows,)).flip(0).contiguous()

        self.temperature = column(temperature, torch.float64)
        self.limits = column(top_k, torch.int64), column(top_p, torch.float64), column(min_p, torch.float64)
        self.seeds = torch.arange(num_rows, device=DEVICE) * 10**15 - 7
        self.positions = torch.arange(num_rows, device=DEVICE) + 3

    def masses(self, function=draw.block_masses):
        return function(self.logits, self.slots, self.temperature)

    def truncate(self, function=truncation.truncate):
        """Return thresholds and what is left of the masses."""
        peaks, masses = self.masses(draw.block_masses_reference)
        return function(self.logits, peaks, masses, self.slots, self.temperature, *self.limits), masses

    def draw(self, function=draw.draw):
        peaks, _ = self.masses(draw.block_masses_reference)
        thresholds, masses = self.truncate(truncation.truncate_reference)
        thresholds *= 1 - 1e-5  # a device rounds the weight of the last kept token differently
        slots = self.slots, self.positions, self.temperature, self.seeds
        return function(self.logits, peaks, masses, thresholds, *slots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab_size"), [(0, 5), (1, 1), (3, 300), (2, 4097)])
def test_block_masses(rows, vocab_size, dtype):
    logits = normal(rows, vocab_size + 3, dtype=dtype)[:, :vocab_size]
    logits[:, : vocab_size // 2] = -INF  # a block of which nothing is left, where there are several
    case = Rows(logits, temperature=0.7)

    for found, expected in zip(case.masses(), case.masses(draw.block_masses_reference), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab_size"), [(0, 5), (1, 1), (6, 300), (4, 1500)])
def test_draw(rows, vocab_size, dtype):
    temperature = ([0.5, 0.0, 1.0, 2.0, 0.01, 1.0] * 2)[:rows]
    case = Rows(normal(rows, vocab_size, scale=1.0, dtype=dtype), temperature, top_p=0.5)

    assert torch.equal(case.draw(), case.draw(draw.draw_reference))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, which interprets the kernels
@pytest.mark.parametrize("value", [-INF, INF, float("nan")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_drawn_without_a_finite_logit_is_an_id_nevertheless(value, temperature):
    logits = normal(1, 300)
    logits[0] = value
    case = Rows(logits, temperature, top_k=5)
    peaks, masses = case.masses()
    thresholds = truncation.truncate(logits, peaks, masses, case.slots, case.temperature, *case.limits)

    parameters = case.slots, case.positions, case.temperature, case.seeds
    [token_id], largest = draw.draw(logits, peaks, masses, thresholds, *parameters)

    assert 0 <= token_id < 300
    np.testing.assert_equal(largest.view(torch.float32).item(), value)


# --- Truncation ---

LIMITS = [
    *[(0, 1.0, 0.0), (1, 1.0, 0.0), (400, 1.0, 0.0), (10**6, 0.9, 0.0), (0, 0.5, 0.0), (0, 1e-4, 0.0), (0, 0.9999, 0.0)],
    *[(0, 1.0, 0.3), (0, 1.0, 1.0), (20, 0.7, 0.1), (0, 0.9, 0.02), (2, 1.0, 0.9)],
]


@pytest.mark.parametrize(("vocab_size", "scale"), [(50, 5.0), (700, 0.3)])
def test_truncation(vocab_size, scale):
    """Every mix of limits at once, and a greedy row, which is not cut."""
    limits = [*LIMITS, (5, 0.5, 0.1)]
    temperature = [*([0.8, 1.5] * 6), 0.0]
    case = Rows(normal(len(limits), vocab_size, scale=scale), temperature, *zip(*limits, strict=True))

    thresholds, masses = case.truncate()

    expected, expected_masses = case.truncate(truncation.truncate_reference)
    divisors = case.temperature[case.slots, None].float().clamp(min=0.01)
    # What the kernel's exp and torch's make of one logit may differ in the last bit.
    weights = ((case.logits - case.logits.amax(1, keepdim=True)) / divisors).exp() * (1 + 1e-6)
    assert torch.equal(weights >= thresholds[:, None], weights >= expected[:, None])
    torch.testing.assert_close(masses, expected_masses)


@pytest.mark.parametrize("limits", [(2, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.4), (3, 0.5, 0.0)])
def test_ties_with_the_last_token_are_kept(limits):
    logits = on_device([[1.0, 0.5, 0.5, 0.5, 0.1, 0.0]], torch.float32).log()

    _, masses = Rows(logits, 1.0, *limits).truncate()

    assert masses.item() == pytest.approx(2.5)


# --- Logprobs ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab_size", "width"), [(0, 5, 2), (1, 1, 1), (3, 50, 4), (2, 4097, 33)])
def test_logprobs(rows, vocab_size, width, dtype):
    logits = normal(rows, vocab_size + 1, dtype=dtype)[:, :vocab_size]
    ids = torch.randint(vocab_size, (rows, width), dtype=torch.int32, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    found, ranks = logprobs.gather_logprobs(logits, ids)

    expected, expected_ranks = logprobs.gather_logprobs_reference(logits, ids)
    torch.testing.assert_close(found, expected)
    assert torch.equal(ranks, expected_ranks)
