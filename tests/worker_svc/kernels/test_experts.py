"""The kernels of mixtures of experts equal their references: experts without tokens, tiles of every size, biases, views."""

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


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num_tokens", "num_chosen", "num_experts", "tile", "has_bias"),
    [(3, 2, 4, FEW, True), (21, 3, 5, FEW, False), (70, 1, 2, MANY, True)],
)
def test_products_equal_their_references(num_tokens, num_chosen, num_experts, tile, has_bias, dtype):
    hidden, size = 136, 70
    groups = group_pairs_reference(choice(num_tokens, num_chosen, num_experts), num_experts, tile.rows)
    x = normal(num_tokens, hidden + 16).to(dtype)[:, :hidden]
    up, down = normal(num_experts, size, hidden).to(dtype) / 12, normal(num_experts, hidden, size).to(dtype) / 8
    biases = (normal(num_experts, size).to(dtype), normal(num_experts, hidden).to(dtype)) if has_bias else (None, None)
    factors = normal(num_tokens * num_chosen)

    first = first_product(x, up, biases[0], groups, num_chosen)
    inner = first_product_reference(x, up, biases[0], groups, num_chosen)
    second = second_product(inner, down, biases[1], groups, factors)
    expected = second_product_reference(inner, down, biases[1], groups, factors)

    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(first, inner, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(second, expected, rtol=tolerance, atol=tolerance)


def test_the_references_are_the_products_with_each_tokens_experts():
    chosen, factors = choice(6, 2, 4), normal(12)
    groups = group_pairs_reference(chosen, 4, FEW.rows)
    x, up, down = normal(6, 40), normal(4, 24, 40), normal(4, 40, 24)

    inner = first_product_reference(x, up, None, groups, 2)
    found = second_product_reference(inner, down, None, groups, factors).view(6, 2, 40)

    for token, experts in enumerate(chosen.tolist()):
        for place, expert in enumerate(experts):
            wanted = down[expert] @ (up[expert] @ x[token]) * factors[2 * token + place]
            torch.testing.assert_close(found[token, place], wanted, rtol=1e-4, atol=1e-3)
