"""The kernels of mixtures of experts equal their references: experts without tokens, tiles of every size, biases, views."""

import dataclasses

import pytest
import torch

from tetrad.worker_svc.kernels.expert_groups import PairGroups, group_pairs, group_pairs_reference
from tetrad.worker_svc.kernels.expert_matmul import (
    FEW,
    MANY,
    first_product,
    first_product_reference,
    second_product,
    second_product_reference,
)
from tetrad.worker_svc.kernels.expert_weights import ExpertWeights, stacked

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter multiplies bfloat16 as if its bits were integers; compiled for a GPU it is what it should be.
TYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])).to(DEVICE)


def choice(num_tokens: int, num_chosen: int, num_experts: int) -> torch.Tensor:
    """Different experts for each token; the last one for none."""
    scores = torch.rand(num_tokens, num_experts - 1, generator=torch.Generator().manual_seed(num_tokens))
    return scores.topk(num_chosen, -1)[1].to(DEVICE)


def listed(groups: PairGroups) -> list[list[int]]:
    """Return the tiles that have pairs; there are none behind one that has none."""
    tiles = groups.tiles.tolist()
    filled = [tile for tile in tiles if tile[0] >= 0]
    assert tiles[: len(filled)] == filled
    return filled


@pytest.mark.parametrize(
    ("num_tokens", "num_chosen", "num_experts", "rows"), [(0, 2, 4, 16), (1, 2, 3, 16), (45, 3, 9, 16), (70, 1, 2, 64)]
)
def test_groups_equal_their_reference(num_tokens, num_chosen, num_experts, rows):
    chosen = choice(num_tokens, num_chosen, num_experts)

    found, expected = (group(chosen, num_experts, rows) for group in (group_pairs, group_pairs_reference))

    assert found.order.tolist() == expected.order.tolist()
    assert found.tiles.shape == expected.tiles.shape
    assert listed(found) == listed(expected)


@pytest.mark.parametrize(("num_present", "rows"), [(2, 16), (4, 16), (3, 64)])
def test_pairs_of_absent_experts_are_last_and_in_no_tile(num_present, rows):
    chosen = choice(37, 3, 9).clamp_max(num_present)

    found, expected = (group(chosen, num_present, rows) for group in (group_pairs, group_pairs_reference))

    assert found.order.tolist() == expected.order.tolist()
    assert listed(found) == listed(expected)
    num_pairs = int((chosen < num_present).sum())
    assert sum(count for _, _, count in listed(found)) == num_pairs
    assert set(found.order[num_pairs:].tolist()) == set((chosen.flatten() == num_present).nonzero().flatten().tolist())


def test_products_of_absent_experts_are_zero():
    chosen = choice(21, 3, 6).clamp_max(2)
    groups = group_pairs(chosen, 2, FEW.rows)
    x, down, factors = normal(63, 70), ExpertWeights(normal(2, 136, 70) / 8), normal(63)

    found = second_product(x, down, groups, factors, are_all=False)

    expected = second_product_reference(x, down, groups, factors)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not found[chosen.flatten() == 2].any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num_tokens", "num_chosen", "num_experts", "tile", "has_bias"),
    [(3, 2, 4, FEW, True), (21, 3, 5, FEW, False), (70, 1, 2, MANY, True)],
)
def test_products_equal_their_references(num_tokens, num_chosen, num_experts, tile, has_bias, dtype):
    hidden, size = 136, 70
    groups = group_pairs_reference(choice(num_tokens, num_chosen, num_experts), num_experts, tile.rows)
    x = normal(num_tokens, hidden + 16).to(dtype)[:, :hidden]
    biases = (normal(num_experts, size).to(dtype), normal(num_experts, hidden).to(dtype)) if has_bias else (None, None)
    up = ExpertWeights(normal(num_experts, size, hidden).to(dtype) / 12, biases[0])
    down = ExpertWeights(normal(num_experts, hidden, size).to(dtype) / 8, biases[1])
    factors = normal(num_tokens * num_chosen)

    first = first_product(x, up, groups, num_chosen)
    inner = first_product_reference(x, up, groups, num_chosen)
    second = second_product(inner, down, groups, factors)
    expected = second_product_reference(inner, down, groups, factors)

    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(first, inner, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(second, expected, rtol=tolerance, atol=tolerance)


def test_the_references_are_the_products_with_each_tokens_experts():
    chosen, factors = choice(6, 2, 4), normal(12)
    groups = group_pairs_reference(chosen, 4, FEW.rows)
    x, up, down = normal(6, 40), normal(4, 24, 40), normal(4, 40, 24)

    inner = first_product_reference(x, ExpertWeights(up), groups, 2)
    found = second_product_reference(inner, ExpertWeights(down), groups, factors).view(6, 2, 40)

    for token, experts in enumerate(chosen.tolist()):
        for place, expert in enumerate(experts):
            wanted = down[expert] @ (up[expert] @ x[token]) * factors[2 * token + place]
            torch.testing.assert_close(found[token, place], wanted, rtol=1e-4, atol=1e-3)


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


def scales_of(num_experts: int, num_groups: int, outputs: int) -> torch.Tensor:
    return normal(num_experts, num_groups, outputs).abs() / 100 + 0.01


NUM_EXPERTS, OUTPUTS, COLUMNS = 4, 70, 160
TABLE = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]).to(DEVICE)
FP8_BITS = normal(NUM_EXPERTS, OUTPUTS, COLUMNS).to(torch.float8_e4m3fn).view(torch.uint8)
INT8 = integers(-127, 128, NUM_EXPERTS, OUTPUTS, COLUMNS).to(torch.int8)
INT4 = integers(0, 256, NUM_EXPERTS, OUTPUTS, COLUMNS // 2).to(torch.uint8)
QUANTIZED = {
    "int8, a scale a row": ExpertWeights(INT8, scales=scales_of(NUM_EXPERTS, 1, OUTPUTS), group=COLUMNS),
    "int8 in groups": ExpertWeights(INT8, scales=scales_of(NUM_EXPERTS, 5, OUTPUTS), group=32),
    "fp8 in blocks, the last one partial": ExpertWeights(
        FP8_BITS, scales=scales_of(NUM_EXPERTS, 2, OUTPUTS), group=128, has_fp8=True
    ),
    "fp8 on a device without it": ExpertWeights(FP8_BITS, scales=scales_of(NUM_EXPERTS, 1, OUTPUTS), group=COLUMNS),
    "int4": ExpertWeights(
        INT4,
        scales=scales_of(NUM_EXPERTS, 5, OUTPUTS),
        zeros=integers(0, 17, NUM_EXPERTS, 5, OUTPUTS).to(torch.uint8),
        group=32,
    ),
    "a table in groups of 16": ExpertWeights(INT4, scales=scales_of(NUM_EXPERTS, 10, OUTPUTS), table=TABLE, group=16),
    "a table": ExpertWeights(INT4, scales=scales_of(NUM_EXPERTS, 1, OUTPUTS).half(), table=TABLE, group=COLUMNS),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tile", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_products_with_quantized_weights_equal_their_references(kind, tile, dtype):
    stored = QUANTIZED[kind]
    table = None if stored.table is None else stored.table.to(dtype)
    weights = dataclasses.replace(stored, bias=normal(NUM_EXPERTS, OUTPUTS).to(dtype), table=table)
    groups = group_pairs_reference(choice(40, 2, NUM_EXPERTS), NUM_EXPERTS, tile.rows)
    x, rows, factors = normal(40, COLUMNS).to(dtype), normal(80, COLUMNS).to(dtype), normal(80)

    first, second = first_product(x, weights, groups, 2), second_product(rows, weights, groups, factors)

    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(first, first_product_reference(x, weights, groups, 2), rtol=tolerance, atol=tolerance)
    expected = second_product_reference(rows, weights, groups, factors)
    torch.testing.assert_close(second, expected, rtol=tolerance, atol=tolerance)


def test_experts_of_different_kinds_are_not_stacked():
    wide, narrow = (ExpertWeights(INT8[0], scales=scales_of(1, 160 // group, OUTPUTS)[0], group=group) for group in (160, 32))

    assert stacked([wide, narrow]) is None
