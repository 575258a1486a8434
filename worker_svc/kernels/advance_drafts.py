"""Advances drafts: stores the drafts of one place, and lists the rows of the pass that reads them.

Called between two passes of a draft model or a draft head. Both are recorded as one graph, so the kernel reads the place of
each request's drafts in device memory, and padding goes on as padding.
Dims: R requests, S slots, L tokens of the longest request.
"""

import torch
import triton
import triton.language as tl

SLOT, FIRST_PLACE, NUM_DRAFTS = range(3)
"""Columns of `rows`."""

_BLOCK = 128


def advance_drafts_reference(
    rows: torch.Tensor, drafts: torch.Tensor, token_ids: torch.Tensor, *, number: int, lag: int
) -> torch.Tensor:
    """Write each request's draft to its place in `token_ids`, and return the rows [R, 5] int32 of the next pass.

    A request without a further draft becomes padding, see gather_inputs. The others have one token.

    Args:
        rows: [R, 3] int32, contiguous: slot, place of the first draft among the request's tokens, and number of drafts.
            Slot -1: padding, which writes nothing.
        drafts: [R] int32, the drafts with this number.
        token_ids: [S, L] int32.
        number: number of the drafts, from 0; requests with fewer drafts write nothing.
        lag: the next pass is at the position of the draft, less this number.
    """
    table = torch.tensor([[-1, 0, 1, row, 0] for row in range(len(rows))], dtype=torch.int32).view(-1, 5)
    for row, (slot, first, count) in enumerate(rows.tolist()):
        if slot >= 0 and number < count:
            token_ids[slot, first + number] = drafts[row]
        if slot >= 0 and number + 1 < count:
            position = first + number - lag
            table[row] = torch.tensor([slot, position, 1, row, position + 1])
    return table.to(rows.device)


@triton.jit(do_not_specialize=["num_rows", "number", "lag"])
def advance_drafts_kernel(rows, drafts, token_ids, table, stride_ids, num_rows, number, lag, BLOCK: tl.constexpr):
    """Compute BLOCK requests."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = row < num_rows
    slot = tl.load(rows + row * 3, mask=exists, other=-1)
    place = tl.load(rows + row * 3 + 1, mask=exists, other=0) + number
    count = tl.load(rows + row * 3 + 2, mask=exists, other=0)
    draft = tl.load(drafts + row, mask=exists, other=0)
    tl.store(token_ids + slot.to(tl.int64) * stride_ids + place, draft, mask=(slot >= 0) & (number < count))
    goes_on = (slot >= 0) & (number + 1 < count)
    target = table + row * 5
    tl.store(target, tl.where(goes_on, slot, -1), mask=exists)
    tl.store(target + 1, tl.where(goes_on, place - lag, 0), mask=exists)
    tl.store(target + 2, tl.full([BLOCK], 1, tl.int32), mask=exists)
    tl.store(target + 3, row, mask=exists)
    tl.store(target + 4, tl.where(goes_on, place - lag + 1, 0), mask=exists)


def advance_drafts(rows: torch.Tensor, drafts: torch.Tensor, token_ids: torch.Tensor, *, number: int, lag: int) -> torch.Tensor:
    """See advance_drafts_reference."""
    assert rows.is_contiguous() and drafts.is_contiguous() and token_ids.stride(1) == 1
    table = torch.empty((len(rows), 5), dtype=torch.int32, device=rows.device)
    if len(rows):
        advance_drafts_kernel[(triton.cdiv(len(rows), _BLOCK),)](
            rows, drafts, token_ids, table, token_ids.stride(0), len(rows), number, lag, BLOCK=_BLOCK, num_warps=1
        )
    return table
