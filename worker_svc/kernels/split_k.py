"""Split K: several programs compute parts of a tile's sum over K, and the last one to finish adds the parts.

With few rows there are too few tiles to use the whole device for reading weights; so several programs share a tile, each with a
part of K. When a program finishes, it takes a ticket from the tile's counter. The program with the last ticket adds the parts
in order, so results are the same bits every time, and resets the counter. This needs one launch and no second kernel.
"""

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.tile_shapes import MAX_SPLIT_TILES


@triton.jit
def store_product(
    total,
    bias,
    out,
    partial,
    tickets,
    rows,
    outputs,
    num_rows,
    num_outputs,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """Store a tile [rows, outputs] of the product, of program (row tile, output tile, part of K).

    Args:
        total: the tile, or this part of its sum, float32.
        bias: [N].
        out: [T, N], contiguous.
        partial: [parts, T, N] float32.
        tickets: one counter per tile, initially 0.
        rows, outputs: the rows and outputs of the tile; some may be outside of the product.
        num_rows, num_outputs: T and N.
    """
    inside = (rows[:, None] < num_rows) & (outputs[None, :] < num_outputs)
    place = rows[:, None].to(tl.int64) * num_outputs + outputs[None, :]
    if not IS_SPLIT:
        _store(total, bias, out, outputs, num_outputs, place, inside, HAS_BIAS)
    else:
        whole, is_last = sum_parts(total, partial, tickets, place, inside, tl.cast(num_rows, tl.int64) * num_outputs)
        _store(whole, bias, out, outputs, num_outputs, place, inside & is_last, HAS_BIAS)


@triton.jit
def sum_parts(total, partial, tickets, place, inside, size):
    """Return (the sum of all parts of a tile, True) in the program that finishes last; others return a part and False.

    Args:
        total: this program's part [rows, outputs] of the sum, float32.
        partial, tickets: see store_product.
        place: [rows, outputs], indices of the tile's values in [T, N].
        inside: [rows, outputs], whether a value is in the product.
        size: T * N.
    """
    num_splits = tl.num_programs(2)
    tl.store(partial + tl.program_id(2) * size + place, total, mask=inside)
    tl.debug_barrier()  # the whole part is written before its ticket is taken
    mine = tickets + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    is_last = tl.atomic_add(mine, 1, sem="acq_rel") == num_splits - 1
    if is_last:
        total = tl.zeros_like(total)
        for split in range(num_splits):
            # Read past the processor's L1 cache, because other processors wrote the values.
            total += tl.load(partial + split * size + place, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(mine, 0)
    return total, is_last


@triton.jit
def _store(total, bias, out, outputs, num_outputs, place, inside, HAS_BIAS: tl.constexpr):  # noqa: ANN202 - of Triton
    if HAS_BIAS:
        total += tl.load(bias + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(out + place, total, mask=inside)


def make_tickets(device: torch.device) -> torch.Tensor:
    """Return the tickets [MAX_SPLIT_TILES] int32 that all products of one stream share."""
    return torch.zeros(MAX_SPLIT_TILES, dtype=torch.int32, device=device)
