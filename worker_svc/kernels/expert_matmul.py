"""Products of a mixture of experts: each expert multiplies the tokens that chose it, all experts in one launch.

A program computes a tile of pairs of one expert (expert_groups.py) and some outputs. The first product reads tokens and writes
pairs in the groups' order. The second one reads pairs in that order and writes them in the original order, times the router's
weights.
Gale et al., "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", 2023.
Dims: T tokens, C chosen experts of each, N = T * C pairs, E experts, K inputs, O outputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.expert_groups import PairGroups


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """The tiles of a product: pairs, outputs and bytes of inputs that are multiplied at once, and Triton's warps and stages."""

    rows: int
    outputs: int
    column_bytes: int
    warps: int
    stages: int


FEW = ExpertTile(rows=16, outputs=64, column_bytes=256, warps=4, stages=4)
"""Tiles for few pairs per expert: the time of the product is that of reading weights."""
MANY = ExpertTile(rows=64, outputs=128, column_bytes=128, warps=4, stages=3)

_TILES = {tile.rows: tile for tile in (FEW, MANY)}


def rows_of_tiles(num_pairs: int, num_experts: int) -> int:
    """Return the number of pairs in a tile."""
    return (FEW if num_pairs <= FEW.rows * num_experts else MANY).rows


def first_product_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: PairGroups, num_chosen: int
) -> torch.Tensor:
    """Return each pair's token times its expert [N, O], in the groups' order and in x's type.

    Args:
        x: [T, K]; rows may have gaps between them, but each row is contiguous.
        weight: [E, O, K] in x's type, contiguous.
        bias: [E, O] in x's type, contiguous, or None.
        groups: the pairs, grouped by expert.
        num_chosen: C.
    """
    out = x.new_empty(len(groups.order), weight.shape[1])
    for expert, begin, count in _listed(groups):
        places = slice(begin, begin + count)
        out[places] = _product(x[groups.order[places] // num_chosen], weight, bias, expert).to(x.dtype)
    return out


def second_product_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: PairGroups, factors: torch.Tensor
) -> torch.Tensor:
    """Return each pair's row of x times its expert, times its factor [N, O] float32, in the original order of pairs.

    Args:
        x: [N, K], in the groups' order; contiguous.
        weight, bias, groups: see first_product_reference.
        factors: [N] float32, factors of the pairs in their original order.
    """
    out = torch.empty(len(x), weight.shape[1], dtype=torch.float32, device=x.device)
    for expert, begin, count in _listed(groups):
        places = slice(begin, begin + count)
        pairs = groups.order[places].long()
        out[pairs] = _product(x[places], weight, bias, expert) * factors[pairs, None]
    return out


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
    total = x.float() @ weight[expert].float().T
    return total if bias is None else total + bias[expert].float()


def _listed(groups: PairGroups) -> list[tuple[int, int, int]]:
    return [(expert, begin, count) for expert, begin, count in groups.tiles.tolist() if expert >= 0]


@triton.jit
def expert_matmul_kernel(
    x,
    weight,
    bias,
    factors,
    out,
    order,
    tiles,
    num_outputs,
    num_columns,
    stride_x,
    CHOSEN: tl.constexpr,
    IS_FIRST: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiply tile `program_id(0)` of pairs and `program_id(1)` of outputs. IS_EVEN: COLUMNS divides K."""
    tile = tiles + tl.program_id(0) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        lanes = tl.arange(0, ROWS)
        is_row = lanes < tl.load(tile + 2)
        places = (tl.load(tile + 1) + lanes).to(tl.int64)
        pairs = tl.load(order + places, mask=is_row, other=0).to(tl.int64)
        outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        # A tile that extends beyond the outputs reads the last output again; these results are not stored.
        known_outputs = expert * num_outputs + tl.minimum(outputs, num_outputs - 1)
        x_rows = x + (pairs // CHOSEN if IS_FIRST else places)[:, None] * stride_x
        weight_rows = weight + known_outputs[:, None] * num_columns
        total = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(0, num_columns, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)[None, :]
            if IS_EVEN:
                values = tl.load(x_rows + columns, mask=is_row[:, None], other=0.0)
                weights = tl.load(weight_rows + columns)
            else:
                inside = columns < num_columns
                values = tl.load(x_rows + columns, mask=is_row[:, None] & inside, other=0.0)
                weights = tl.load(weight_rows + columns, mask=inside, other=0.0)
            total = tl.dot(values, tl.trans(weights), total, input_precision=PRECISION)
        if HAS_BIAS:
            total += tl.load(bias + known_outputs).to(tl.float32)[None, :]
        if not IS_FIRST:
            total *= tl.load(factors + pairs, mask=is_row, other=0.0)[:, None]
        targets = out + (places if IS_FIRST else pairs)[:, None] * num_outputs + outputs[None, :]
        tl.store(targets, total, mask=is_row[:, None] & (outputs < num_outputs)[None, :])


def first_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: PairGroups, num_chosen: int
) -> torch.Tensor:
    """See first_product_reference."""
    out = torch.empty((len(groups.order), weight.shape[1]), dtype=x.dtype, device=x.device)
    return _launch(x, weight, bias, groups, None, out, num_chosen)


def second_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: PairGroups, factors: torch.Tensor
) -> torch.Tensor:
    """See second_product_reference."""
    assert factors.dtype == torch.float32 and factors.is_contiguous() and factors.numel() == len(x) == len(groups.order)
    out = torch.empty((len(x), weight.shape[1]), dtype=torch.float32, device=x.device)
    return _launch(x, weight, bias, groups, factors, out, 1)


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    groups: PairGroups,
    factors: torch.Tensor | None,
    out: torch.Tensor,
    num_chosen: int,
) -> torch.Tensor:
    _, num_outputs, num_columns = weight.shape
    assert x.stride(1) == 1 and x.shape[1] == num_columns and weight.is_contiguous() and weight.dtype == x.dtype
    assert bias is None or (bias.is_contiguous() and bias.shape == weight.shape[:2])
    if not len(out):
        return out
    tile = _TILES[groups.rows_of_tile]
    columns = tile.column_bytes // x.element_size()
    expert_matmul_kernel[(len(groups.tiles), triton.cdiv(num_outputs, tile.outputs))](
        x,
        weight,
        out if bias is None else bias,
        out if factors is None else factors,
        out,
        groups.order,
        groups.tiles,
        num_outputs,
        num_columns,
        x.stride(0),
        CHOSEN=num_chosen,
        IS_FIRST=factors is None,
        HAS_BIAS=bias is not None,
        IS_EVEN=num_columns % columns == 0,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        COLUMNS=columns,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out
