"""Truncation: min_p, top_k and top_p as one threshold per row, below which a token cannot be drawn.

The rules are those of sampler/truncation.py, but without sorting. top_k and top_p keep the weights that reach a threshold: the
largest number such that enough weights reach it (top_k), or weights with enough mass (top_p). Bisection finds the threshold.
Non-negative floats have the same order as their bits, so 31 passes find the exact threshold; most searches end sooner, when at
most one weight is left between the bounds. The time of a pass is that of its sums over the program's warps: so a pass over
registers divides the bounds by eight, and a pass over memory sums once.

A pass does not have to read the whole row. The largest weights of the blocks of neighbouring ids (draw.py computes them) are
also weights of the row, so the same search over them only, in registers, gives a lower bound of the threshold; blocks whose
largest weight is below this floor are not read again. In a peaked row, a few per cent of the blocks remain.
Dims: N rows, V ids, B blocks, S slots.
"""

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.draw import BLOCKS_AT_ONCE, largest_of, load_divisor, weight_of
from tetrad.worker_svc.sampler.draw import BLOCK

_BITS_OF_ONE = tl.constexpr(0x3F800000)
_WAYS = tl.constexpr(8)  # thresholds that a pass over registers tries


def truncate_reference(
    logits: torch.Tensor,
    peaks: torch.Tensor,
    masses: torch.Tensor,
    slots: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Return the smallest weight [N] float32 that each row keeps, 0 without truncation; `masses` become those of kept weights.

    Args:
        logits: [N, V]; rows may have gaps between them.
        peaks: [N, B], see block_masses.
        masses: [N, B], see block_masses; changed in place.
        slots: [N] int64.
        temperature: [S] float64; 0: greedy, no truncation.
        top_k: [S] int64; 0: off.
        top_p: [S] float64; 1: off.
        min_p: [S] float64; 0: off.
    """
    thresholds = torch.zeros(len(logits), device=logits.device)
    for row, slot in enumerate(slots.tolist()):
        divisor, k, p = float(temperature[slot]), int(top_k[slot]), float(top_p[slot])
        if not divisor or not (k or p < 1 or min_p[slot]):
            continue
        weights = ((logits[row].float() - peaks[row].amax()) / divisor).exp()
        falling = weights.sort(descending=True).values
        falling = falling[falling >= min_p[slot].float()]
        if k:
            falling = falling[falling >= falling[min(k, len(falling)) - 1]]
        before = falling.double().cumsum(0) - falling
        is_kept = (before < p * falling.double().sum()) if p < 1 else torch.ones_like(before, dtype=torch.bool)
        least = falling[is_kept][-1]
        thresholds[row] = least
        kept = torch.zeros(masses.shape[1] * BLOCK, device=logits.device)
        of_block = peaks[row].repeat_interleave(BLOCK)[: len(weights)]
        kept[: len(weights)] = torch.where(weights >= least, ((logits[row].float() - of_block) / divisor).exp(), 0)
        masses[row] = kept.view(-1, BLOCK).sum(1)
    return thresholds


@triton.jit
def truncation_kernel(
    logits,
    peaks,
    masses,
    slots,
    temperature,
    top_k,
    top_p,
    min_p,
    thresholds,
    listed,
    stride_logits,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
    BLOCKS_AT_ONCE: tl.constexpr,
    ALL_BLOCKS: tl.constexpr,
):
    """Compute row `program_id(0)`; `listed` [N, B] int32 is memory for the list of blocks that are read."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    k = tl.load(top_k + slot).to(tl.float64)
    p = tl.load(top_p + slot)
    least_share = tl.load(min_p + slot).to(tl.float32)
    is_cut = (tl.load(temperature + slot) > 0) & ((k > 0) | (p < 1) | (least_share > 0))
    threshold = 0.0
    if is_cut:
        divisor = load_divisor(temperature, slot)
        logits += row * stride_logits
        peaks += row * num_blocks
        masses += row * num_blocks
        listed += row * num_blocks
        blocks = tl.arange(0, ALL_BLOCKS)
        exists = blocks < num_blocks
        peak = tl.load(peaks + blocks, mask=exists, other=float("-inf"))
        top = largest_of(peak, exists)
        tops = tl.where(exists, weight_of(peak, top, divisor), 0.0)
        mass = tl.sum((tops * tl.load(masses + blocks, mask=exists, other=0.0)).to(tl.float64), 0)
        is_nucleus_of_all = (k == 0) & (least_share == 0)

        low = least_share.to(tl.int32, bitcast=True)
        floor = low
        if k > 0:
            floor = largest_reached(tops, tl.where(exists, 1.0, 0.0), k, low)
        elif is_nucleus_of_all:
            floor = largest_reached(tops, tops, p * mass, low)
        reaches = exists & (tops >= floor.to(tl.float32, bitcast=True))
        num_listed = tl.sum(reaches.to(tl.int32), 0)
        tl.store(listed + tl.cumsum(reaches.to(tl.int32), 0) - 1, blocks, mask=reaches)
        tl.store(masses + blocks, 0.0, mask=exists)
        tl.debug_barrier()  # other threads read the written values

        low = floor
        if k > 0:
            low = search(logits, listed, num_listed, vocab_size, top, divisor, k, low, False, BLOCK, BLOCKS_AT_ONCE)
        if p < 1:
            if not is_nucleus_of_all:
                _, mass = held_by(logits, listed, num_listed, vocab_size, top, divisor, low, BLOCK, BLOCKS_AT_ONCE)
            low = search(logits, listed, num_listed, vocab_size, top, divisor, p * mass, low, True, BLOCK, BLOCKS_AT_ONCE)
        threshold = low.to(tl.float32, bitcast=True)

        for start in range(0, num_listed, BLOCKS_AT_ONCE):
            found, values = load_blocks(logits, listed, num_listed, vocab_size, start, BLOCK, BLOCKS_AT_ONCE)
            is_kept = weight_of(values, top, divisor) >= threshold
            base = tl.load(peaks + found, mask=found >= 0, other=0.0)
            # As in block_masses_kernel: relative to the block's own largest logit.
            kept = tl.where(is_kept, weight_of(values, base[:, None], divisor), 0.0)
            tl.store(masses + found, tl.sum(kept, 1), mask=found >= 0)
    tl.store(thresholds + row, threshold)


@triton.jit
def largest_reached(values, amounts, target, low):
    """Return the bits of the largest threshold such that `amounts` of values [n] that reach it sum to the target, or `low`."""
    high = _BITS_OF_ONE + 1
    part = 1 + tl.arange(0, _WAYS)
    while high - low > 1:
        step = tl.cdiv(high - low, _WAYS)
        middles = low + part * step
        reaches = values[None, :] >= middles.to(tl.float32, bitcast=True)[:, None]
        held = tl.sum(tl.where(reaches, amounts[None, :], 0.0).to(tl.float64), 1)
        num_held = tl.sum(((held >= target) & (middles < high)).to(tl.int32), 0)
        low += num_held * step
        high = tl.minimum(low + step, high)
    return low


@triton.jit
def search(
    logits,
    listed,
    num_listed,
    vocab_size,
    top,
    divisor,
    target,
    low,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS_AT_ONCE: tl.constexpr,
):
    """Return the bits of the largest threshold, at least `low`, that `target` weights reach, or weights with that mass."""
    high = _BITS_OF_ONE + 1
    num_above_low = vocab_size + 2
    num_above_high = 0
    # With at most one weight between the bounds, no other threshold gives another result.
    while (high - low > 1) & (num_above_low - num_above_high > 1):
        middle = low + (high - low) // 2
        count, mass = held_by(logits, listed, num_listed, vocab_size, top, divisor, middle, BLOCK, BLOCKS_AT_ONCE)
        held = mass if BY_MASS else count.to(tl.float64)
        is_held = held >= target
        low = tl.where(is_held, middle, low)
        high = tl.where(is_held, high, middle)
        num_above_low = tl.where(is_held, count, num_above_low)
        num_above_high = tl.where(is_held, num_above_high, count)
    return low


@triton.jit
def held_by(logits, listed, num_listed, vocab_size, top, divisor, bits, BLOCK: tl.constexpr, BLOCKS_AT_ONCE: tl.constexpr):
    """Return the number of weights of the listed blocks that reach a threshold, and their mass."""
    threshold = bits.to(tl.float32, bitcast=True)
    counts = tl.zeros([BLOCKS_AT_ONCE, BLOCK], tl.int32)
    masses = tl.zeros([BLOCKS_AT_ONCE, BLOCK], tl.float64)
    for start in range(0, num_listed, BLOCKS_AT_ONCE):
        _, values = load_blocks(logits, listed, num_listed, vocab_size, start, BLOCK, BLOCKS_AT_ONCE)
        weights = weight_of(values, top, divisor)
        reaches = (weights >= threshold) & (values > float("-inf"))
        counts += reaches.to(tl.int32)
        masses += tl.where(reaches, weights, 0.0).to(tl.float64)
    return tl.sum(tl.sum(counts, 1), 0), tl.sum(tl.sum(masses, 1), 0)


@triton.jit
def load_blocks(logits, listed, num_listed, vocab_size, start, BLOCK: tl.constexpr, BLOCKS_AT_ONCE: tl.constexpr):
    """Return some listed blocks (-1 after the last) and their logits [BLOCKS_AT_ONCE, BLOCK], -inf if there are none."""
    at = start + tl.arange(0, BLOCKS_AT_ONCE)
    blocks = tl.load(listed + at, mask=at < num_listed, other=-1)
    ids = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (blocks >= 0)[:, None] & (ids < vocab_size)
    return blocks, tl.load(logits + ids, mask=inside, other=float("-inf")).to(tl.float32)


def truncate(
    logits: torch.Tensor,
    peaks: torch.Tensor,
    masses: torch.Tensor,
    slots: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """See truncate_reference."""
    num_rows, vocab_size = logits.shape
    num_blocks = peaks.shape[1]
    assert logits.stride(1) == 1 and peaks.is_contiguous() and masses.is_contiguous()
    thresholds = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    listed = torch.empty((num_rows, num_blocks), dtype=torch.int32, device=logits.device)
    if num_rows:
        truncation_kernel[(num_rows,)](
            logits,
            peaks,
            masses,
            slots,
            temperature,
            top_k,
            top_p,
            min_p,
            thresholds,
            listed,
            logits.stride(0),
            vocab_size,
            num_blocks,
            BLOCK=BLOCK,
            BLOCKS_AT_ONCE=BLOCKS_AT_ONCE,
            ALL_BLOCKS=triton.next_power_of_2(num_blocks),
            num_warps=8,
        )
    return thresholds
