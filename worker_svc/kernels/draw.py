"""Draw: draws one token per row, the winner of the two exponential races of sampler/draw.py, with the same noise.

There are two kernels. The first reads all logits once and writes, for each block of 256 neighbouring ids, the largest logit and
the mass relative to it; in the second, the blocks race with their masses, and then the ids of the winning block. Between the
two, truncation.py may exclude ids. A greedy row uses the same kernels: the first block with the largest logit wins, and its
first id. Weights are exp((logit - largest) / temperature), computed when needed and never written.
Dims: N rows, V ids, B = ceil(V / 256) blocks, S slots; parameters are stored by slot.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.argmax import pack, store_chosen
from tetrad.worker_svc.kernels.philox import uniform
from tetrad.worker_svc.sampler.draw import BLOCK
from tetrad.worker_svc.sampler.philox import uniforms

BLOCKS_AT_ONCE = 16


def block_masses_reference(
    logits: torch.Tensor, slots: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest logit [N, B] of each block, NaN if the block has one, and its mass [N, B], relative to that logit.

    Args:
        logits: [N, V], float32, bfloat16 or float16; rows may have gaps between them.
        slots: [N] int64.
        temperature: [S] float64; 0: greedy, masses are undefined.
    """
    num_blocks = -(-logits.shape[1] // BLOCK)
    blocks = torch.full((len(logits), num_blocks * BLOCK), float("-inf"), device=logits.device)
    blocks[:, : logits.shape[1]] = logits
    blocks = blocks.view(len(logits), num_blocks, BLOCK)
    peaks = blocks.amax(2)
    divisors = _divisors(temperature[slots])[:, None, None]
    return peaks, ((blocks - peaks[..., None].clamp(min=-3e38)) / divisors).exp().sum(2)


def draw_reference(
    logits: torch.Tensor,
    peaks: torch.Tensor,
    masses: torch.Tensor,
    thresholds: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
) -> torch.Tensor:
    """Return [2, N] int32, as argmax does: ids, and the bits of the largest logits.

    If the largest logit is not finite, the id is an arbitrary one of the vocabulary.

    Args:
        logits: see block_masses.
        peaks: [N, B], the largest logits from block_masses.
        masses: [N, B], masses of the ids that can be drawn.
        thresholds: [N] float32; smaller weights cannot be drawn.
        slots: [N] int64.
        positions: [N] int64, absolute positions of the drawn tokens; the noise is a function of position and seed.
        temperature: [S] float64; 0: greedy.
        seeds: [S] int64.
    """
    largest = peaks.amax(1)
    drawn = logits.float().argmax(1)
    for row in torch.nonzero((temperature[slots] > 0) & largest.isfinite()).flatten().tolist():
        divisor = temperature[slots[row]].float()
        seed, position = (each.cpu().numpy() for each in (seeds[slots[row : row + 1]], positions[row : row + 1]))
        rates = masses[row] * ((peaks[row] - largest[row]) / divisor).exp()
        block = _race(rates, uniforms(seed, position, np.zeros(1, np.int64), len(rates)))
        weights = ((logits[row, block * BLOCK : (block + 1) * BLOCK].float() - largest[row]) / divisor).exp()
        weights[weights < thresholds[row]] = 0
        drawn[row] = block * BLOCK + _race(weights, uniforms(seed, position, np.array([1 + block]), len(weights)))
    return pack(drawn, largest)


def _race(rates: torch.Tensor, noise: np.ndarray) -> int:
    """Return the index with the shortest exponential time; rate 0 never wins."""
    times = -np.log1p(-noise[0])
    return int(np.where(rates.cpu().numpy() > 0, times / np.maximum(rates.cpu().numpy(), 1e-45), np.inf).argmin())


def _divisors(temperature: torch.Tensor) -> torch.Tensor:
    return torch.where(temperature > 0, temperature, 1).float()


@triton.jit
def weight_of(logits, largest, divisor):
    """Return exp((logits - largest) / divisor). All kernels use this function, so that thresholds fit the same weights.

    If the largest logit is -inf, all weights are 0.
    """
    return tl.exp((logits - tl.where(largest == float("-inf"), 0.0, largest)) / divisor)


@triton.jit
def load_divisor(temperature, slot):
    """Return a slot's temperature, or 1 if it is greedy."""
    value = tl.load(temperature + slot).to(tl.float32)
    return tl.where(value > 0, value, 1.0)


@triton.jit
def largest_of(peaks, exists):
    """Return the largest of a row's peaks, or NaN if a peak is NaN."""
    is_nan = tl.sum(((peaks != peaks) & exists).to(tl.int32), 0) > 0
    return tl.where(is_nan, float("nan"), tl.max(tl.where((peaks == peaks) & exists, peaks, float("-inf")), 0))


@triton.jit
def block_masses_kernel(
    logits,
    slots,
    temperature,
    peaks,
    masses,
    stride_logits,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
    BLOCKS_AT_ONCE: tl.constexpr,
):
    """Compute part `program_id(1)`, of BLOCKS_AT_ONCE blocks, of row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    divisor = load_divisor(temperature, tl.load(slots + row))
    blocks = tl.program_id(1) * BLOCKS_AT_ONCE + tl.arange(0, BLOCKS_AT_ONCE)
    ids = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    values = tl.load(logits + row * stride_logits + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    is_number = values == values
    peak = tl.max(tl.where(is_number, values, float("-inf")), 1)
    mass = tl.sum(weight_of(values, peak[:, None], divisor), 1)
    peak = tl.where(tl.sum((~is_number).to(tl.int32), 1) > 0, float("nan"), peak)
    tl.store(peaks + row * num_blocks + blocks, peak, mask=blocks < num_blocks)
    tl.store(masses + row * num_blocks + blocks, mass, mask=blocks < num_blocks)


@triton.jit
def draw_kernel(
    logits,
    peaks,
    masses,
    thresholds,
    slots,
    positions,
    temperature,
    seeds,
    chosen,
    stride_logits,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
    ALL_BLOCKS: tl.constexpr,
):
    """Compute row `program_id(0)`. Ids are always within the vocabulary, for any logits: the next step reads the drawn ids."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    divisor = load_divisor(temperature, slot)
    is_greedy = tl.load(temperature + slot) == 0
    seed = tl.load(seeds + slot)
    position = tl.load(positions + row)
    blocks = tl.arange(0, ALL_BLOCKS)
    exists = blocks < num_blocks
    peak = tl.load(peaks + row * num_blocks + blocks, mask=exists, other=float("-inf"))
    mass = tl.load(masses + row * num_blocks + blocks, mask=exists, other=0.0)
    top = largest_of(peak, exists)

    rates = mass * weight_of(peak, top, divisor)
    times = arrival_times(rates, uniform(seed, position, position * 0, blocks))
    times = tl.where(is_greedy, tl.where(peak == top, 0.0, float("inf")).to(tl.float64), times)
    block = tl.minimum(first_of_least(times, blocks), num_blocks - 1)

    at = tl.arange(0, BLOCK)
    ids = block * BLOCK + at
    values = tl.load(logits + row * stride_logits + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    weights = weight_of(values, top, divisor)
    weights = tl.where((ids < vocab_size) & (weights >= tl.load(thresholds + row)), weights, 0.0)
    times = arrival_times(weights, uniform(seed, position, 1 + block, at))
    times = tl.where(is_greedy, tl.where(values == top, 0.0, float("inf")).to(tl.float64), times)
    token_id = tl.minimum(block * BLOCK + first_of_least(times, at), vocab_size - 1)
    store_chosen(chosen, row, token_id, top)


@triton.jit
def arrival_times(rates, noise):
    """Return exponential times -log(1 - noise) / rate in float64, where 1 - noise is exact; for rates not above 0, infinity."""
    arrives = rates > 0
    return tl.where(arrives, -tl.log(1.0 - noise) / tl.where(arrives, rates, 1.0).to(tl.float64), float("inf"))


@triton.jit
def first_of_least(times, index):
    """Return the lowest index with the smallest time."""
    return tl.min(tl.where(times == tl.min(times, 0), index, 2147483647), 0)


def block_masses(logits: torch.Tensor, slots: torch.Tensor, temperature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See block_masses_reference."""
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1, "a row's logits lie side by side"
    num_blocks = triton.cdiv(vocab_size, BLOCK)
    peaks, masses = (torch.empty((num_rows, num_blocks), dtype=torch.float32, device=logits.device) for _ in range(2))
    if num_rows:
        block_masses_kernel[(num_rows, triton.cdiv(num_blocks, BLOCKS_AT_ONCE))](
            logits,
            slots,
            temperature,
            peaks,
            masses,
            logits.stride(0),
            vocab_size,
            num_blocks,
            BLOCK=BLOCK,
            BLOCKS_AT_ONCE=BLOCKS_AT_ONCE,
            num_warps=4,
        )
    return peaks, masses


def draw(
    logits: torch.Tensor,
    peaks: torch.Tensor,
    masses: torch.Tensor,
    thresholds: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
) -> torch.Tensor:
    """See draw_reference."""
    num_rows, vocab_size = logits.shape
    num_blocks = peaks.shape[1]
    assert logits.stride(1) == 1 and peaks.is_contiguous() and masses.is_contiguous()
    chosen = torch.empty((2, num_rows), dtype=torch.int32, device=logits.device)
    if num_rows:
        draw_kernel[(num_rows,)](
            logits,
            peaks,
            masses,
            thresholds,
            slots,
            positions,
            temperature,
            seeds,
            chosen,
            logits.stride(0),
            vocab_size,
            num_blocks,
            BLOCK=BLOCK,
            ALL_BLOCKS=triton.next_power_of_2(num_blocks),
            num_warps=4,
        )
    return chosen
