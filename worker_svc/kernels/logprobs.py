"""Logprobs: gathers log-probabilities or logits of chosen ids of a row, and the rank of the first id.

One program per row; one pass for the largest logit, one for the softmax's sum and the rank, and then the ids.
Dims: N rows, V ids, W chosen ids per row.
"""

import torch
import triton
import triton.language as tl


def gather_logprobs_reference(
    logits: torch.Tensor, ids: torch.Tensor, *, has_logits: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities [N, W] float32, and ranks [N] int32: 1 + the number of ids more likely than the row's first.

    Args:
        logits: [N, V], float32, bfloat16 or float16; rows may have gaps between them.
        ids: [N, W] int32.
        has_logits: whether logits take the place of log-probabilities.
    """
    values = logits.float() if has_logits else logits.float().log_softmax(1)
    chosen = values.gather(1, ids.long())
    return chosen, 1 + (logits > logits.gather(1, ids[:, :1].long())).sum(1, dtype=torch.int32)


@triton.jit(do_not_specialize=["width"])
def gather_logprobs_kernel(
    logits,
    ids,
    logprobs,
    ranks,
    stride_logits,
    vocab_size,
    width,
    BLOCK: tl.constexpr,
    IDS_AT_ONCE: tl.constexpr,
    HAS_LOGITS: tl.constexpr,
):
    """Compute row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride_logits
    at = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        values = tl.load(logits + start + at, mask=start + at < vocab_size, other=float("-inf")).to(tl.float32)
        best = tl.maximum(best, values)
    top = tl.max(best, 0)

    first = tl.load(logits + tl.load(ids + row * width)).to(tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    num_above = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        values = tl.load(logits + start + at, mask=start + at < vocab_size, other=float("-inf")).to(tl.float32)
        mass += tl.exp(values - top)
        num_above += (values > first).to(tl.int32)
    tl.store(ranks + row, 1 + tl.sum(num_above, 0))

    log_total = 0.0 if HAS_LOGITS else top + tl.log(tl.sum(mass, 0))
    chosen = tl.arange(0, IDS_AT_ONCE)
    for start in range(0, width, IDS_AT_ONCE):
        inside = start + chosen < width
        found = tl.load(ids + row * width + start + chosen, mask=inside, other=0)
        values = tl.load(logits + found, mask=inside, other=0.0).to(tl.float32)
        tl.store(logprobs + row * width + start + chosen, values - log_total, mask=inside)


def gather_logprobs(logits: torch.Tensor, ids: torch.Tensor, *, has_logits: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """See gather_logprobs_reference."""
    num_rows, vocab_size = logits.shape
    width = ids.shape[1]
    assert logits.stride(1) == 1 and ids.is_contiguous() and ids.dtype == torch.int32
    logprobs = torch.empty((num_rows, width), dtype=torch.float32, device=logits.device)
    ranks = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    if num_rows:
        block = min(triton.next_power_of_2(vocab_size), 4096)
        gather_logprobs_kernel[(num_rows,)](
            logits,
            ids,
            logprobs,
            ranks,
            logits.stride(0),
            vocab_size,
            width,
            BLOCK=block,
            IDS_AT_ONCE=32 if width <= 32 else 1024,
            HAS_LOGITS=has_logits,
            num_warps=max(block // 512, 1),
        )
    return logprobs, ranks
