"""Penalties: repetition (prompt and output), frequency and presence (output) lower the logits of tokens seen before.

The tokens of a request are counted in a line of a table: for each id, twice its count in the output, plus 1 if it is in the
prompt. A step counts the few new tokens in device memory, and then reads table and logits once. The alternative, a search
through the request's tokens in each step, would take longer for longer requests, and would have to handle several places with
the same id.
Dims: N rows of logits, M penalised ones, V ids, S slots, L tokens of the longest request, P lines.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 1024


def count_tokens_reference(
    seen: torch.Tensor,
    num_counted: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    penalised: torch.Tensor,
) -> None:
    """Count the tokens of each penalised row, from the first uncounted one up to, not including, the row's position.

    Args:
        seen: [P, V] int32, twice the count in the output, plus 1 for an id of the prompt; changed in place.
        num_counted: [P] int32, number of tokens counted in a line; changed in place.
        token_ids: [S, L] int32, the tokens of all requests.
        slots: [N] int64, slots of the rows' requests.
        positions: [N] int64, positions of the tokens to be sampled.
        num_prompt_tokens: [S] int64.
        penalised: [M, 5] int64, contiguous; columns 0 and 1 are the row and its line; all lines differ.
    """
    for row, line in penalised[:, :2].tolist():
        slot, position = int(slots[row]), int(positions[row])
        for place in range(int(num_counted[line]), position):
            token_id = int(token_ids[slot, place])
            if place < num_prompt_tokens[slot]:
                seen[line, token_id] |= 1
            else:
                seen[line, token_id] += 2
        num_counted[line] = position


def apply_penalties_reference(logits: torch.Tensor, seen: torch.Tensor, penalised: torch.Tensor) -> None:
    """Lower the logits of seen ids, by repetition, then frequency, then presence, in place.

    Args:
        logits: [N, V] float32; rows may have gaps between them.
        seen: see count_tokens_reference.
        penalised: [M, 5] int64, contiguous: the row, its line, and the bits of repetition, frequency and presence penalty as
            float64.
    """
    rows, lines = penalised[:, 0], penalised[:, 1]
    repetition, frequency, presence = penalised.view(torch.float64)[:, 2:, None].float().unbind(1)
    values, counts = logits[rows], seen[lines] >> 1
    values = torch.where(seen[lines] > 0, torch.where(values > 0, values / repetition, values * repetition), values)
    logits[rows] = values - frequency * counts - presence * (counts > 0)


@triton.jit
def count_tokens_kernel(
    seen,
    num_counted,
    token_ids,
    slots,
    positions,
    num_prompt_tokens,
    penalised,
    stride_tokens,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """Count for penalised row `program_id(0)`. Additions are of integers, so the order of threads does not change results."""
    entry = penalised + tl.program_id(0) * 5
    row = tl.load(entry)
    line = tl.load(entry + 1)
    slot = tl.load(slots + row)
    end = tl.load(positions + row).to(tl.int32)
    num_prompt = tl.load(num_prompt_tokens + slot)
    for start in range(tl.load(num_counted + line), end, BLOCK):
        places = start + tl.arange(0, BLOCK)
        exists = places < end
        ids = tl.load(token_ids + slot * stride_tokens + places, mask=exists, other=0)
        target = seen + line * vocab_size + ids
        tl.atomic_or(target, 1, mask=exists & (places < num_prompt))
        tl.atomic_add(target, 2, mask=exists & (places >= num_prompt))
    tl.debug_barrier()  # all threads have read the values that change now
    tl.store(num_counted + line, end)


@triton.jit
def penalties_kernel(logits, seen, penalised, stride_logits, vocab_size, BLOCK: tl.constexpr):
    """Compute part `program_id(1)`, of BLOCK ids, of penalised row `program_id(0)`."""
    entry = penalised + tl.program_id(0) * 5
    row = tl.load(entry)
    line = tl.load(entry + 1)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab_size
    marks = tl.load(seen + line * vocab_size + at, mask=inside, other=0)
    # Most ids have not been seen; if no id of the block has been, its logits are not read.
    if tl.max(marks, 0) > 0:
        repetition = tl.load(entry + 2).to(tl.float64, bitcast=True).to(tl.float32)
        frequency = tl.load(entry + 3).to(tl.float64, bitcast=True).to(tl.float32)
        presence = tl.load(entry + 4).to(tl.float64, bitcast=True).to(tl.float32)
        is_seen = marks > 0
        values = tl.load(logits + row * stride_logits + at, mask=is_seen, other=0.0)
        values = tl.where(values > 0, values / repetition, values * repetition)
        counts = (marks >> 1).to(tl.float32)
        values = values - frequency * counts - tl.where(counts > 0, presence, 0.0)
        tl.store(logits + row * stride_logits + at, values, mask=is_seen)


def count_tokens(
    seen: torch.Tensor,
    num_counted: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    penalised: torch.Tensor,
) -> None:
    """See count_tokens_reference."""
    assert seen.is_contiguous() and penalised.is_contiguous() and token_ids.stride(1) == 1
    if len(penalised):
        count_tokens_kernel[(len(penalised),)](
            seen,
            num_counted,
            token_ids,
            slots,
            positions,
            num_prompt_tokens,
            penalised,
            token_ids.stride(0),
            seen.shape[1],
            BLOCK=_BLOCK,
            num_warps=4,
        )


def apply_penalties(logits: torch.Tensor, seen: torch.Tensor, penalised: torch.Tensor) -> None:
    """See apply_penalties_reference."""
    vocab_size = logits.shape[1]
    assert logits.stride(1) == 1 and seen.is_contiguous() and penalised.is_contiguous() and seen.shape[1] == vocab_size
    if len(penalised):
        grid = (len(penalised), triton.cdiv(vocab_size, _BLOCK))
        penalties_kernel[grid](logits, seen, penalised, logits.stride(0), vocab_size, BLOCK=_BLOCK, num_warps=4)
