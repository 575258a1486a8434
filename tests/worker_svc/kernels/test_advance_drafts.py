"""The kernel advance_drafts equals its reference: it stores the same drafts and lists the same rows for the next pass."""

import pytest
import torch

from tetrad.worker_svc.kernels.advance_drafts import advance_drafts, advance_drafts_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PADDING = (-1, 0, 0)
"""Slot, place of the first draft, number of drafts."""
REQUESTS = {
    "no request": [],
    "one request": [(2, 9, 3)],
    "requests with different numbers of drafts, and padding": [(3, 7, 3), (0, 20, 1), (1, 3, 2), PADDING, PADDING],
    "more requests than a program's": [(row % 4, 1 + row // 4, 1 + row % 3) for row in range(150)],
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("lag", [0, 1])
def test_drafts_advance_to_the_next_pass(name, number, lag):
    rows = torch.tensor(REQUESTS[name], dtype=torch.int32, device=DEVICE).view(-1, 3)
    drafts = 1000 + torch.arange(len(rows), dtype=torch.int32, device=DEVICE)
    token_ids = [torch.arange(4 * 60, dtype=torch.int32, device=DEVICE).view(4, 60) for _ in range(2)]

    table = advance_drafts(rows, drafts, token_ids[0], number=number, lag=lag)

    assert torch.equal(table, advance_drafts_reference(rows, drafts, token_ids[1], number=number, lag=lag))
    assert torch.equal(*token_ids)


def test_a_request_without_a_further_draft_goes_on_as_padding():
    rows = torch.tensor([(1, 5, 2), (0, 8, 1), PADDING], dtype=torch.int32, device=DEVICE)
    token_ids = torch.zeros(2, 12, dtype=torch.int32, device=DEVICE)
    drafts = torch.tensor([40, 41, 42], dtype=torch.int32, device=DEVICE)

    table = advance_drafts(rows, drafts, token_ids, number=0, lag=1)

    assert table.tolist() == [[1, 4, 1, 0, 5], [-1, 0, 1, 1, 0], [-1, 0, 1, 2, 0]]
    assert (token_ids[1, 5], token_ids[0, 8]) == (40, 41)
    assert int(token_ids.count_nonzero()) == 2
