"""Biases: adds values to chosen logits, always or below a position (a minimum length bans EOS until then).

Dims: N rows of logits, V ids, E entries.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 128


def add_biases_reference(logits: torch.Tensor, positions: torch.Tensor, entries: torch.Tensor) -> None:
    """Add each value to its logit, in place, if the row's position is below the entry's.

    Args:
        logits: [N, V] float32; rows may have gaps between them.
        positions: [N] int64, positions of the tokens to be sampled.
        entries: [E, 4] int64, contiguous: row, id, position, and the bits of the value as float64; all (row, id) differ.
    """
    rows, ids, until = entries[:, :3].T
    holds = positions[rows] < until
    values = entries.view(torch.float64)[:, 3]
    logits[rows[holds], ids[holds]] += values[holds].float()


@triton.jit(do_not_specialize=["num_entries"])
def biases_kernel(logits, positions, entries, stride_logits, num_entries, BLOCK: tl.constexpr):
    """Add the entries of block `program_id(0)`, which has BLOCK entries."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = at < num_entries
    entry = entries + at * 4
    row = tl.load(entry, mask=exists, other=0)
    target = logits + row * stride_logits + tl.load(entry + 1, mask=exists, other=0)
    until = tl.load(entry + 2, mask=exists, other=0)
    value = tl.load(entry + 3, mask=exists, other=0).to(tl.float64, bitcast=True).to(tl.float32)
    holds = exists & (tl.load(positions + row) < until)
    tl.store(target, tl.load(target, mask=holds, other=0.0) + value, mask=holds)


def add_biases(logits: torch.Tensor, positions: torch.Tensor, entries: torch.Tensor) -> None:
    """See add_biases_reference."""
    assert logits.stride(1) == 1 and entries.is_contiguous() and positions.is_contiguous()
    if len(entries):
        grid = (triton.cdiv(len(entries), _BLOCK),)
        biases_kernel[grid](logits, positions, entries, logits.stride(0), len(entries), BLOCK=_BLOCK, num_warps=4)
