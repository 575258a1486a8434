"""Products of a mixture of experts: each expert multiplies the tokens that chose it, all experts in one launch.

A program computes a tile of pairs of one expert (expert_groups.py) and some outputs. The first product reads tokens and writes
pairs in the groups' order. The second one reads pairs in that order and writes them in the original order, times the router's
weights.
Gale et al., "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", 2023.
Quantized weights are converted when they are read, and activations stay floats.
Dims: T tokens, C chosen experts of each, N = T * C pairs, E experts, K inputs, O outputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.byte_matmul import widen
from tetrad.worker_svc.kernels.expert_groups import PairGroups
from tetrad.worker_svc.kernels.expert_weights import ExpertWeights
from tetrad.worker_svc.kernels.int4_matmul import BLOCK, SMALL_GROUP, scaled_products, weights_of


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


def first_product_reference(x: torch.Tensor, weights: ExpertWeights, groups: PairGroups, num_chosen: int) -> torch.Tensor:
    """Return each pair's token times its expert [N, O], in the groups' order and in x's type.

    Args:
        x: [T, K]; rows may have gaps between them, but each row is contiguous.
        weights: of E experts; each tensor is contiguous, and weights that are floats are in x's type.
        groups: the pairs, grouped by expert.
        num_chosen: C.
    """
    out = x.new_empty(len(groups.order), weights.values.shape[1])
    for expert, begin, count in _listed(groups):
        places = slice(begin, begin + count)
        out[places] = _product(x[groups.order[places] // num_chosen], weights, expert).to(x.dtype)
    return out


def second_product_reference(
    x: torch.Tensor, weights: ExpertWeights, groups: PairGroups, factors: torch.Tensor
) -> torch.Tensor:
    """Return each pair's row of x times its expert, times its factor [N, O] float32, in the original order of pairs.

    Args:
        x: [N, K], in the groups' order; contiguous.
        weights, groups: see first_product_reference.
        factors: [N] float32, factors of the pairs in their original order.

    Returns:
        The products; zeros for pairs of absent experts.
    """
    out = torch.zeros(len(x), weights.values.shape[1], dtype=torch.float32, device=x.device)
    for expert, begin, count in _listed(groups):
        places = slice(begin, begin + count)
        pairs = groups.order[places].long()
        out[pairs] = _product(x[places], weights, expert) * factors[pairs, None]
    return out


def _product(x: torch.Tensor, weights: ExpertWeights, expert: int) -> torch.Tensor:
    total = x.float() @ weights.dequantized(expert).T
    return total if weights.bias is None else total + weights.bias[expert].float()


def _listed(groups: PairGroups) -> list[tuple[int, int, int]]:
    return [(expert, begin, count) for expert, begin, count in groups.tiles.tolist() if expert >= 0]


@triton.jit
def expert_matmul_kernel(
    x,
    weight,
    scales,
    bias,
    factors,
    out,
    order,
    tiles,
    num_outputs,
    num_columns,
    num_groups,
    stride_x,
    GROUP: tl.constexpr,
    CHOSEN: tl.constexpr,
    IS_FIRST: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiply tile `program_id(0)` of pairs and `program_id(1)` of outputs by weights in floats or in bytes.

    GROUP is 0 if a row has one scale. IS_EVEN: COLUMNS divides K.
    """
    tile = tiles + tl.program_id(0) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        places, pairs, is_row = pairs_of(tile, order, ROWS)
        outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        # A tile that extends beyond the outputs reads the last output again; these results are not stored.
        known_outputs = tl.minimum(outputs, num_outputs - 1)
        x_rows = x + (pairs // CHOSEN if IS_FIRST else places)[:, None] * stride_x
        weight_rows = weight + (expert * num_outputs + known_outputs)[:, None] * num_columns
        own_scales = scales + expert * num_groups * num_outputs + known_outputs
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
            weights = tl.trans(widen(weights, values.dtype))
            if GROUP == 0:
                total = tl.dot(values, weights, total, input_precision=PRECISION)
            else:
                part = tl.dot(values, weights, input_precision=PRECISION)
                total += part * tl.load(own_scales + start // GROUP * num_outputs).to(tl.float32)[None, :]
        if HAS_SCALES and GROUP == 0:
            total *= tl.load(own_scales).to(tl.float32)[None, :]
        store_pairs(
            total, bias + expert * num_outputs, factors, out, pairs, places, is_row, outputs, num_outputs, IS_FIRST, HAS_BIAS
        )


@triton.jit
def expert_int4_matmul_kernel(
    x,
    packed,
    scales,
    zeros,
    table,
    bias,
    factors,
    out,
    order,
    tiles,
    num_outputs,
    num_columns,
    stride_x,
    GROUP: tl.constexpr,
    CHOSEN: tl.constexpr,
    IS_FIRST: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiply tile `program_id(0)` of pairs and `program_id(1)` of outputs by weights in 4 bits (int4_matmul.py).

    COLUMNS is a multiple of 32 and divides a group; it is 32 for groups of 16.
    """
    tile = tiles + tl.program_id(0) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        places, pairs, is_row = pairs_of(tile, order, ROWS)
        outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        known_outputs = tl.minimum(outputs, num_outputs - 1)
        x_rows = x + (pairs // CHOSEN if IS_FIRST else places)[:, None] * stride_x
        packed_rows = packed + (expert * num_outputs + known_outputs)[:, None] * (num_columns // 2)
        first_group = expert * (num_columns // GROUP) * num_outputs + known_outputs
        byte = tl.arange(0, COLUMNS // 2)[None, :]
        low_column = byte // 16 * 32 + byte % 16
        total = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(0, num_columns, COLUMNS):
            low_x = tl.load(x_rows + start + low_column, mask=is_row[:, None], other=0.0)
            high_x = tl.load(x_rows + start + low_column + 16, mask=is_row[:, None], other=0.0)
            quanta = tl.load(packed_rows + start // 2 + byte)
            of_group = first_group + start // GROUP * num_outputs
            low, high = weights_of(quanta, table, zeros + of_group, x.dtype.element_ty, HAS_TABLE)
            total += scaled_products(low_x, high_x, low, high, scales + of_group, num_outputs, GROUP, PRECISION)
        store_pairs(
            total, bias + expert * num_outputs, factors, out, pairs, places, is_row, outputs, num_outputs, IS_FIRST, HAS_BIAS
        )


@triton.jit
def pairs_of(tile, order, ROWS: tl.constexpr):
    """Return the places [ROWS] of a tile's pairs in the groups' order, the pairs, and whether each of them exists."""
    lanes = tl.arange(0, ROWS)
    is_row = lanes < tl.load(tile + 2)
    places = (tl.load(tile + 1) + lanes).to(tl.int64)
    return places, tl.load(order + places, mask=is_row, other=0).to(tl.int64), is_row


@triton.jit
def store_pairs(
    total,
    bias,
    factors,
    out,
    pairs,
    places,
    is_row,
    outputs,
    num_outputs,
    IS_FIRST: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Add an expert's bias, multiply by the factors of the second product, and store a tile."""
    is_output = outputs < num_outputs
    if HAS_BIAS:
        total += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if not IS_FIRST:
        total *= tl.load(factors + pairs, mask=is_row, other=0.0)[:, None]
    targets = out + (places if IS_FIRST else pairs)[:, None] * num_outputs + outputs[None, :]
    tl.store(targets, total, mask=is_row[:, None] & is_output[None, :])


def first_product(x: torch.Tensor, weights: ExpertWeights, groups: PairGroups, num_chosen: int) -> torch.Tensor:
    """See first_product_reference."""
    out = torch.empty((len(groups.order), weights.values.shape[1]), dtype=x.dtype, device=x.device)
    return _launch(x, weights, groups, None, out, num_chosen)


def second_product(
    x: torch.Tensor, weights: ExpertWeights, groups: PairGroups, factors: torch.Tensor, *, are_all: bool = True
) -> torch.Tensor:
    """See second_product_reference; `are_all`: no pair has an absent expert."""
    assert factors.dtype == torch.float32 and factors.is_contiguous() and factors.numel() == len(x) == len(groups.order)
    allocate = torch.empty if are_all else torch.zeros
    out = allocate((len(x), weights.values.shape[1]), dtype=torch.float32, device=x.device)
    return _launch(x, weights, groups, factors, out, 1)


def _launch(
    x: torch.Tensor,
    weights: ExpertWeights,
    groups: PairGroups,
    factors: torch.Tensor | None,
    out: torch.Tensor,
    num_chosen: int,
) -> torch.Tensor:
    values, bias, scales, num_columns = weights.values, weights.bias, weights.scales, weights.num_columns
    num_outputs = values.shape[1]
    assert x.stride(1) == 1 and x.shape[1] == num_columns and values.is_contiguous()
    assert bias is None or (bias.is_contiguous() and bias.shape == values.shape[:2])
    assert scales is None or scales.is_contiguous()
    if not len(out):
        return out
    tile = _TILES[groups.rows_of_tile]
    columns = tile.column_bytes // x.element_size()
    is_grouped = scales is not None and scales.shape[1] > 1
    if is_grouped or weights.has_4_bits:
        columns = min(columns, max(weights.group & -weights.group, BLOCK))
    grid = (len(groups.tiles), triton.cdiv(num_outputs, tile.outputs))
    pointers = (out if bias is None else bias, out if factors is None else factors, out, groups.order, groups.tiles)
    shared = {
        "CHOSEN": num_chosen,
        "IS_FIRST": factors is None,
        "HAS_BIAS": bias is not None,
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "COLUMNS": columns,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
    if weights.has_4_bits:
        assert (weights.group % BLOCK == 0 or weights.group == SMALL_GROUP) and num_columns % max(weights.group, BLOCK) == 0
        expert_int4_matmul_kernel[grid](
            x,
            values,
            scales,
            values if weights.zeros is None else weights.zeros,
            x if weights.table is None else weights.table,
            *pointers,
            num_outputs,
            num_columns,
            x.stride(0),
            GROUP=weights.group,
            HAS_TABLE=weights.table is not None,
            **shared,
        )
        return out
    assert scales is not None or values.dtype == x.dtype
    expert_matmul_kernel[grid](
        x,
        values.view(torch.float8_e4m3fn) if weights.has_fp8 else values,
        out if scales is None else scales,
        *pointers,
        num_outputs,
        num_columns,
        1 if scales is None else scales.shape[1],
        x.stride(0),
        GROUP=weights.group if is_grouped else 0,
        HAS_SCALES=scales is not None,
        IS_EVEN=num_columns % columns == 0,
        **shared,
    )
    return out
