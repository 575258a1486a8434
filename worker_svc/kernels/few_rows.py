"""The common parts of the kernels that multiply few rows: loads, the product, and launch options.

With few rows, a product takes the time in which its weights are read, and the small kernels between products take longer than
their bytes: a launch each. So three kernels compute all of a layer but attention, which runs between the first two:

    normed_qkv      RMSNorm, product, bias, rotation, and the write of keys and values to their pages
    added_product   product, and addition to the residual stream; for the output of attention, and at the end of the layer
    normed_gated    RMSNorm, the products of gate and up, and silu(gate) * up

They are in normed_products.py and added_product.py. Weights do not depend on the predecessor, so a kernel begins to load them
before it waits for the predecessor (dependent_launch.py).
Dims: K inputs.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.dependent_launch import dependent_launch, prefetch, wait_for_predecessor
from tetrad.worker_svc.kernels.tile_shapes import TileShape

_PREFETCHED_BYTES = 20 << 20
"""The weights that all programs of a product prefetch together: less than a Hopper's L2 cache, which has 50 MiB."""
_LINE = 64  # values of 16 bits in a cache line


@triton.jit
def start(weight_rows, begin, end, IS_DEPENDENT: tl.constexpr, PREFETCHED: tl.constexpr, LINE: tl.constexpr = _LINE):
    """Prefetch the first PREFETCHED columns from `begin` on, at most to `end`, and wait for the predecessor."""
    if IS_DEPENDENT:
        lines = tl.minimum(begin + LINE * tl.arange(0, PREFETCHED // LINE), end - 1)
        prefetch(weight_rows + lines[None, :])
    wait_for_predecessor(IS_DEPENDENT)


@triton.jit
def multiply(
    x_rows, is_row, weight_rows, begin, end, num_columns,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, IS_EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the product [ROWS, OUTPUTS] along columns `begin` to `end`.

    Args:
        x_rows: pointers [ROWS, 1] to the first columns of rows.
        is_row: [ROWS, 1]; other rows are zeros.
        weight_rows: pointers [OUTPUTS, 1] to the first columns of outputs.
        begin, end: multiples of COLUMNS, or the end of a row.
        num_columns: K.
    """
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(begin, end, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)[None, :]
        if IS_EVEN:
            a = tl.load(x_rows + columns, mask=is_row, other=0.0)
            w = tl.load(weight_rows + columns)
        else:
            a = tl.load(x_rows + columns, mask=is_row & (columns < num_columns), other=0.0)
            w = tl.load(weight_rows + columns, mask=columns < num_columns, other=0.0)
        total = tl.dot(a, tl.trans(w), total, input_precision=PRECISION)
    return total


def options_of(x: torch.Tensor, weight: torch.Tensor, shape: TileShape) -> dict[str, Any]:
    """Return the constants that all products have, and the options of their launch."""
    return {
        "ROWS": shape.rows,
        "OUTPUTS": shape.outputs,
        "COLUMNS": shape.columns,
        "IS_EVEN": x.shape[1] % shape.columns == 0,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "PREFETCHED": _prefetched(*weight.shape, shape.splits),
        "num_warps": shape.warps,
        "num_stages": shape.stages,
        **dependent_launch(x.device),
    }


@cache
def _prefetched(num_outputs: int, num_columns: int, num_splits: int) -> int:
    """Return the number of columns that each program prefetches of each of its outputs: a power of two."""
    affordable = _PREFETCHED_BYTES // (2 * num_outputs * num_splits)
    most: int = triton.next_power_of_2(triton.cdiv(num_columns, num_splits))
    return max(min(1 << affordable.bit_length() >> 1, most), _LINE)
