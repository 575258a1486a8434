"""Argmax: finds the id of each row's largest logit (the lowest id among equal logits), and that logit.

One program per row, one pass: each lane keeps the largest of its logits, and the lanes are compared at the end.
Dims: N rows, V ids.
"""

import torch
import triton
import triton.language as tl


def pack(token_ids: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Return [2, N] int32: ids, and the bits of float32 logits, in one tensor, so that one copy to the host suffices."""
    return torch.stack([token_ids.to(torch.int32), largest.float().view(torch.int32)])


def argmax_reference(logits: torch.Tensor) -> torch.Tensor:
    """Return [2, N] int32: ids, and the bits of the largest logits as float32.

    Args:
        logits: [N, V]; rows may have gaps between them. If a row has a NaN, its largest logit is NaN, and its id is undefined.
    """
    largest = logits.amax(1, keepdim=True)
    return pack((logits == largest).to(torch.int32).argmax(1), largest[:, 0])


@triton.jit
def argmax_kernel(logits, chosen, stride_logits, vocab_size, BLOCK: tl.constexpr):
    """Compute row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    ids = at
    is_nan = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        values = tl.load(logits + row * stride_logits + start + at, mask=start + at < vocab_size, other=float("-inf"))
        values = values.to(tl.float32)
        is_better = values > best
        ids = tl.where(is_better, start + at, ids)
        best = tl.where(is_better, values, best)
        is_nan |= (values != values).to(tl.int32)
    top = tl.max(best, 0)
    token_id = tl.min(tl.where(best == top, ids, vocab_size - 1), 0)
    store_chosen(chosen, row, token_id, tl.where(tl.max(is_nan, 0) > 0, float("nan"), top))


@triton.jit
def store_chosen(chosen, row, token_id, largest):
    """Write a row's id and its largest logit; see pack."""
    tl.store(chosen + row, token_id)
    tl.store(chosen + tl.num_programs(0) + row, largest.to(tl.int32, bitcast=True))


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """See argmax_reference."""
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1, "a row's logits lie side by side"
    chosen = torch.empty((2, num_rows), dtype=torch.int32, device=logits.device)
    if num_rows:
        block = min(triton.next_power_of_2(vocab_size), 8192)
        argmax_kernel[(num_rows,)](logits, chosen, logits.stride(0), vocab_size, BLOCK=block, num_warps=max(block // 512, 1))
    return chosen
