"""Gathers the inputs of a forward pass from the device's state: ids, positions and KV slots.

The host knows a step's rows and their lengths, but not the last sampled tokens; so it sends five numbers per request, and the
kernel reads the rest in device memory. Models with M-RoPE have positions that are ahead of or behind a token's place, by a
shift that is the same for all tokens after an image.
Dims: R requests, T tokens, S slots, L tokens and P blocks of the longest request.
"""

import torch
import triton
import triton.language as tl

SLOT, NUM_COMPUTED, NUM_SCHEDULED, FIRST_TOKEN, NUM_KEYS = range(5)
"""Columns of `rows`."""

Gathered = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_BLOCK = 128


def gather_inputs_reference(
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    block_size: int,
    num_tokens: int,
    most_scheduled: int,  # noqa: ARG001 - one signature for both
    shifts: torch.Tensor | None = None,
) -> Gathered:
    """Return token ids [T] int32, positions [T] int32 and KV slots [T] int64 (block id * block_size + offset).

    Args:
        rows: [R, 5] int32, contiguous: slot, number of tokens whose keys exist, number of tokens to compute, index of the first
            of these among the T tokens, and sum of both numbers. A row of padding has slot -1 and one token: id 0 at position
            0, with KV slot -1.
        token_ids: [S, L] int32.
        block_tables: [S, P] int32.
        block_size: tokens per block.
        num_tokens: T.
        most_scheduled: largest number of tokens in a row.
        shifts: [S] int32, added to the positions of each slot; None: positions are the tokens' places in their requests.
    """
    ids, positions = torch.zeros(2, num_tokens, dtype=torch.int32, device=rows.device)
    kv_slots = torch.full((num_tokens,), -1, dtype=torch.int64, device=rows.device)
    for slot, computed, scheduled, first, _ in rows.tolist():
        if slot >= 0:
            at = torch.arange(computed, computed + scheduled, device=rows.device)
            part = slice(first, first + scheduled)
            ids[part] = token_ids[slot, at]
            positions[part] = at.int() if shifts is None else at.int() + shifts[slot]
            kv_slots[part] = block_tables[slot, at // block_size].long() * block_size + at % block_size
    return ids, positions, kv_slots


@triton.jit
def gather_inputs_kernel(
    rows, token_ids, block_tables, shifts, ids, positions, kv_slots, stride_ids, stride_tables, block_size,
    HAS_SHIFTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute part `program_id(1)`, of BLOCK tokens, of request `program_id(0)`."""
    row = rows + tl.program_id(0) * 5
    slot = tl.load(row).to(tl.int64)
    computed = tl.load(row + 1)
    scheduled = tl.load(row + 2)
    first = tl.load(row + 3)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < scheduled
    known = inside & (slot >= 0)
    at = tl.where(known, computed + offsets, 0)
    token = tl.load(token_ids + slot * stride_ids + at, mask=known, other=0)
    block = tl.load(block_tables + slot * stride_tables + at // block_size, mask=known, other=0).to(tl.int64)
    kv_slot = tl.where(known, block * block_size + at % block_size, -1)
    tl.store(ids + first + offsets, token, mask=inside)
    position = at
    if HAS_SHIFTS:
        position = tl.where(known, at + tl.load(shifts + slot, mask=slot >= 0, other=0), 0)
    tl.store(positions + first + offsets, position, mask=inside)
    tl.store(kv_slots + first + offsets, kv_slot, mask=inside)


def gather_inputs(
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    block_size: int,
    num_tokens: int,
    most_scheduled: int,
    shifts: torch.Tensor | None = None,
) -> Gathered:
    """See gather_inputs_reference."""
    assert rows.is_contiguous() and token_ids.stride(1) == block_tables.stride(1) == 1
    ids, positions = torch.empty(2, num_tokens, dtype=torch.int32, device=rows.device)
    kv_slots = torch.empty(num_tokens, dtype=torch.int64, device=rows.device)
    if len(rows):
        gather_inputs_kernel[(len(rows), triton.cdiv(most_scheduled, _BLOCK))](
            rows,
            token_ids,
            block_tables,
            rows if shifts is None else shifts,
            ids,
            positions,
            kv_slots,
            token_ids.stride(0),
            block_tables.stride(0),
            block_size,
            HAS_SHIFTS=shifts is not None,
            BLOCK=_BLOCK,
            num_warps=1,
        )
    return ids, positions, kv_slots
