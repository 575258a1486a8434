"""Gathering a step's inputs from the device's own tokens and block tables equals its reference."""

import pytest
import torch

from tetrad.worker_svc.kernels.gather_inputs import gather_inputs, gather_inputs_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PADDING = (-1, 0, 1)
STEPS = {
    "no row": [],
    "one decode": [(3, 9, 1)],
    "decodes and padding": [(0, 5, 1), (2, 0, 1), PADDING, PADDING],
    "chunks longer than a program's tokens": [(1, 7, 1), (0, 3, 129), (2, 0, 260)],
    "a chunk that ends with a block": [(2, 4, 4)],
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("shifts", [None, (0, -7, 40, -3)], ids=["places", "shifted positions"])
def test_gathered_inputs(step, block_size, shifts):
    generator = torch.Generator().manual_seed(2)
    token_ids = torch.randint(1, 1000, (4, 301), generator=generator, dtype=torch.int32).to(DEVICE)
    tables = torch.randint(1, 90, (4, 301 // block_size + 1), generator=generator, dtype=torch.int32).to(DEVICE)
    first, rows = 0, []
    for slot, computed, scheduled in STEPS[step]:
        rows.append((slot, computed, scheduled, first, computed + scheduled))
        first += scheduled
    table = torch.tensor(rows, dtype=torch.int32, device=DEVICE).view(-1, 5)
    shifted = None if shifts is None else torch.tensor(shifts, dtype=torch.int32, device=DEVICE)
    most = max((row[2] for row in rows), default=1)

    found, expected = (
        gather(table, token_ids, tables, block_size=block_size, num_tokens=first, most_scheduled=most, shifts=shifted)
        for gather in (gather_inputs, gather_inputs_reference)
    )

    for part, wanted in zip(found, expected, strict=True):
        assert part.dtype == wanted.dtype
        assert torch.equal(part, wanted)
