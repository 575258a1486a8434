"""The LoRA kernels equal their references: rows of several adapters and of none, split inputs, several modules, views."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.cuda.lora_rows import group_rows
from tetrad.worker_svc.kernels.lora import (
    RowGroups,
    expand,
    expand_reference,
    output_tiles,
    padded_rank,
    shrink,
    shrink_reference,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter multiplies bfloat16 as if its bits were integers; compiled for a GPU it is what it should be.
TYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
NUM_ADAPTERS = 3


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])).to(DEVICE)


def groups_of(slots: list[int]) -> tuple[RowGroups, torch.Tensor]:
    """Rows by adapter, and the rows that have one."""
    order, tiles, rows_of_tile = group_rows(np.array(slots), NUM_ADAPTERS)
    groups = RowGroups(*(torch.from_numpy(each).to(DEVICE) for each in (order, tiles)), rows_of_tile)
    return groups, torch.tensor([slot >= 0 for slot in slots], device=DEVICE)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("slots", "columns", "sizes", "rank"),
    [
        ([0], 48, [40], 16),
        ([2, -1, 0, 2, -1, 1, 0], 600, [70, 33, 33], 16),
        ([1] * 20 + [-1, 0], 1100, [130], 48),
        ([index % 4 - 1 for index in range(140)], 96, [64, 20], 8),
    ],
)
def test_products_equal_their_references(slots, columns, sizes, rank, dtype):
    groups, is_adapted = groups_of(slots)
    rank = padded_rank(rank)
    x = normal(len(slots), columns + 16).to(dtype)[:, :columns]
    a = normal(NUM_ADAPTERS, len(sizes) * rank, columns).to(dtype) / columns**0.5
    b, y = normal(NUM_ADAPTERS, sum(sizes), rank).to(dtype), normal(len(slots), sum(sizes)).to(dtype)
    outputs = torch.tensor(output_tiles(sizes), dtype=torch.int32, device=DEVICE)

    shrunk, expected = shrink(x, a, groups), shrink_reference(x, a, groups)
    added = expand(expected, b, outputs, groups, y.clone())

    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(shrunk[:, is_adapted], expected[:, is_adapted], rtol=tolerance, atol=tolerance)
    wanted = expand_reference(expected, b, outputs, groups, y.clone())
    torch.testing.assert_close(added, wanted, rtol=tolerance, atol=tolerance)
    assert torch.equal(added[~is_adapted], y[~is_adapted])
    assert not torch.equal(added[is_adapted], y[is_adapted])


def test_the_reference_is_the_product_with_each_rows_adapter():
    slots = [1, -1, 0, 1]
    groups, _ = groups_of(slots)
    x, a, b, y = normal(4, 600), normal(NUM_ADAPTERS, 32, 600), normal(NUM_ADAPTERS, 50, 16), normal(4, 50)
    outputs = torch.tensor(output_tiles([30, 20]), dtype=torch.int32, device=DEVICE)

    found = expand_reference(shrink_reference(x, a, groups), b, outputs, groups, y.clone())

    for row, slot in enumerate(slots):
        parts = [b[slot, :30] @ a[slot, :16] @ x[row], b[slot, 30:] @ a[slot, 16:] @ x[row]]
        wanted = y[row] if slot < 0 else y[row] + torch.cat(parts)
        torch.testing.assert_close(found[row], wanted, rtol=1e-4, atol=1e-3)


def test_tiles_of_rows_are_of_one_adapter_and_a_fixed_number():
    slots = np.array([index % 4 - 1 for index in range(70)])

    order, tiles, rows_of_tile = group_rows(slots, NUM_ADAPTERS)

    assert len(tiles) == -(-70 // rows_of_tile) + NUM_ADAPTERS == len(group_rows(np.full(70, -1), NUM_ADAPTERS)[1])
    listed = [
        (slot, row) for slot, begin, count in tiles.tolist() if slot >= 0 for row in order[begin : begin + count].tolist()
    ]
    assert sorted(listed) == sorted((slot, row) for row, slot in enumerate(slots.tolist()) if slot >= 0)
