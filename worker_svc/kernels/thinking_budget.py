"""Thinking budget: ends reasoning beyond its budget; sampler/thinking_budget.py has the rules.

One program for each row with a budget. It reads the request's tokens in device memory, and only in steps in which the end mark
may be forced: from the end of the budget on, for the length of the end mark.
Dims: N rows of logits, V ids, S slots, L tokens of the longest request, M budgets, K ids of the longest start or end.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 1024


def force_ends_reference(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    budgets: torch.Tensor,
) -> None:
    """Mask all ids but one in rows whose reasoning has to end, in place.

    Args:
        logits: [N, V] float32; rows may have gaps between them.
        token_ids: [S, L] int32, the tokens of all requests.
        slots: [N] int64, slots of the rows' requests.
        positions: [N] int64, positions of the tokens to be sampled.
        num_prompt_tokens: [S] int64.
        budgets: [M, 4 + 2 * K] int64, contiguous: the row, the number of output tokens before the end mark, the numbers of ids
            that open and that end the reasoning, then K opening ids and K ending ids, both padded with any values.
    """
    width = (budgets.shape[1] - 4) // 2
    for row, num_tokens, num_start, num_end, *ids in budgets.tolist():
        slot = int(slots[row])
        output = token_ids[slot, int(num_prompt_tokens[slot]) : int(positions[row])].tolist()
        thoughts, start, end = output[:num_tokens], ids[:num_start], ids[width : width + num_end]
        has_ended = any(thoughts[at : at + num_end] == end for at in range(len(thoughts) - num_end + 1))
        if len(output) < num_tokens or thoughts[:num_start] != start or has_ended:
            continue
        num_begun = max(n for n in range(min(num_tokens + 1, max(num_end, 1))) if thoughts[num_tokens - n :] == end[:n])
        place = num_begun + len(output) - num_tokens
        if place < num_end:
            logits[row] = float("-inf")
            logits[row, end[place]] = 0.0


@triton.jit(do_not_specialize=["width"])
def force_ends_kernel(
    logits,
    token_ids,
    slots,
    positions,
    num_prompt_tokens,
    budgets,
    stride_logits,
    stride_tokens,
    vocab_size,
    width,
    BLOCK_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute budget `program_id(0)`."""
    budget = budgets + tl.program_id(0).to(tl.int64) * (4 + 2 * width)
    row = tl.load(budget)
    num_tokens = tl.load(budget + 1).to(tl.int32)
    num_start = tl.load(budget + 2).to(tl.int32)
    num_end = tl.load(budget + 3).to(tl.int32)
    slot = tl.load(slots + row)
    num_prompt = tl.load(num_prompt_tokens + slot)
    output = token_ids + slot * stride_tokens + num_prompt
    num_behind = (tl.load(positions + row) - num_prompt).to(tl.int32) - num_tokens
    if (num_behind >= 0) & (num_behind < num_end):
        start = budget + 4
        end = start + width
        at = tl.arange(0, BLOCK_IDS)
        num_wrong = tl.sum(differs(output, start, at, num_start), 0)
        num_ends = 0
        for begin in range(0, num_tokens - num_end + 1, BLOCK):
            places = begin + tl.arange(0, BLOCK)
            is_end = places <= num_tokens - num_end
            for index in range(num_end):
                is_end &= tl.load(output + places + index, mask=is_end, other=-1) == tl.load(end + index)
            num_ends += tl.sum(is_end.to(tl.int32), 0)
        num_begun = 0
        for number in range(1, tl.minimum(num_tokens + 1, num_end)):
            is_begun = tl.sum(differs(output + num_tokens - number, end, at, number), 0) == 0
            num_begun = tl.where(is_begun, number, num_begun)
        place = num_begun + num_behind
        if (num_wrong == 0) & (num_ends == 0) & (place < num_end):
            forced = tl.load(end + place)
            for begin in range(0, vocab_size, BLOCK):
                ids = begin + tl.arange(0, BLOCK)
                tl.store(logits + row * stride_logits + ids, tl.where(ids == forced, 0.0, float("-inf")), mask=ids < vocab_size)


@triton.jit
def differs(tokens, ids, at, count):
    """Return 1 where tokens and ids differ among the first `count`, otherwise 0."""
    inside = at < count
    return (tl.load(tokens + at, mask=inside, other=-1) != tl.load(ids + at, mask=inside, other=-1)).to(tl.int32)


def force_ends(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    budgets: torch.Tensor,
) -> None:
    """See force_ends_reference."""
    width = (budgets.shape[1] - 4) // 2
    assert logits.stride(1) == token_ids.stride(1) == 1 and budgets.is_contiguous()
    if len(budgets):
        force_ends_kernel[(len(budgets),)](
            logits,
            token_ids,
            slots,
            positions,
            num_prompt_tokens,
            budgets,
            logits.stride(0),
            token_ids.stride(0),
            logits.shape[1],
            width,
            BLOCK_IDS=max(triton.next_power_of_2(width), 16),
            BLOCK=_BLOCK,
            num_warps=4,
        )
