"""Tile shapes of the quantized products: a table by the size of the product, so that no tuning happens during serving.

Shapes measured on a device are in a file with the device's name next to this one; other sizes and devices get shapes by rule.
The number of rows is rounded up to a power of two: a table has one line for 65 to 128 rows.
Dims: T rows of activations, N outputs, K inputs.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from itertools import product
from pathlib import Path

import torch

MAX_SPLIT_TILES = 4096
"""Largest number of tiles for which a product is split; more tiles fill every device."""

_FEW_ROWS = 16  # smallest number of rows for a tensor core
_COLUMNS = 128
_LEAST_OUTPUTS = 16
_LEAST_COLUMNS = 32  # block of 4-bit packing
_USUAL_BYTES = 2  # bytes of an activation
_MIN_STEPS = 2  # smallest number of a split's steps along K
_MAX_SPLITS = 16
_SMALL_ROWS = 64
_MAX_LARGE_SPLITS = 4  # of tiles with more rows: a program sums the parts of its tile alone
_MAX_ROWS = 8192  # more rows use the shape for this number


@dataclass(frozen=True, slots=True)
class TileShape:
    """The tiles of a product.

    Attributes:
        rows: rows of a tile, at least 16.
        outputs: outputs of a tile, at least 16.
        columns: columns of K that are multiplied at once; kernels with smaller groups use the group size.
        splits: number of parts of K, each computed by a separate program.
        warps: warps of a program.
        stages: number of loads in flight at once.
    """

    rows: int
    outputs: int
    columns: int
    splits: int
    warps: int
    stages: int

    def for_values_of(self, value_bytes: int) -> "TileShape":
        """Return the shape for activations of `value_bytes` each: float32 needs smaller tiles than 16-bit types."""
        if value_bytes <= _USUAL_BYTES:
            return self
        return replace(self, columns=max(self.columns // 2, _LEAST_COLUMNS), stages=min(self.stages, 2))


Rule = Callable[[int, int, int, int], TileShape | None]
"""Function (T, N, K, number of processors) -> the shape of a product; None: torch's product."""


class TileShapes:
    """The tile shapes for one device.

    Args:
        num_processors: number of streaming multiprocessors of the device.
        tuned: key_of(...) -> the shape measured as fastest; None: torch's product is faster.
    """

    def __init__(self, num_processors: int, tuned: Mapping[str, TileShape | None] | None = None) -> None:
        self._num_processors = num_processors
        self._tuned = dict(tuned or {})
        self._by_rule: dict[tuple[str, Rule], TileShape | None] = {}

    def of(self, kernel: str, num_rows: int, num_outputs: int, num_columns: int, rule: Rule | None = None) -> TileShape | None:
        """Return the shape for a product [T, K] x [N, K]^T; None if torch's product is faster.

        Args:
            kernel: name of the kernel in the table.
            num_rows, num_outputs, num_columns: T, N, K.
            rule: gives shapes that were not measured; None: shape_by_rule.
        """
        key = key_of(kernel, num_rows, num_outputs, num_columns)
        if key in self._tuned:
            return self._tuned[key]
        rule = rule or shape_by_rule
        if (key, rule) not in self._by_rule:
            sizes = _bucket(num_rows), num_outputs, num_columns, self._num_processors
            self._by_rule[key, rule] = rule(*sizes)
        return self._by_rule[key, rule]

    def set(self, kernel: str, num_rows: int, num_outputs: int, num_columns: int, shape: TileShape | None) -> None:
        """Use this shape from now on; for measurements."""
        self._tuned[key_of(kernel, num_rows, num_outputs, num_columns)] = shape


def shapes_of(device: torch.device) -> TileShapes:
    """Return the shapes of a device; host memory is treated as a small unmeasured device."""
    if device.type != "cuda":
        return TileShapes(num_processors=4)
    properties = torch.cuda.get_device_properties(device)
    return TileShapes(properties.multi_processor_count, load_tuned(tuned_path(properties.name)))


def shape_by_rule(num_rows: int, num_outputs: int, num_columns: int, num_processors: int) -> TileShape:
    """Return an unmeasured shape: tiles as large as the rows fill, with K split until every processor has work.

    With few rows, the time is that of reading weights; wide tiles convert more weights for each activation that they load.
    """
    if num_rows <= _FEW_ROWS:
        rows, outputs, warps, stages = _FEW_ROWS, 64, 4, 4
    elif num_rows <= 64:
        rows, outputs, warps, stages = (32 if num_rows <= 32 else 64), 64, 4, 4
    else:
        rows, outputs, warps, stages = 128, (64 if num_rows <= 128 else 128), 8, 3
    tiles = -(-num_rows // rows) * -(-num_outputs // outputs)
    programs = num_processors * (2 if warps == 4 else 1)
    fitting = num_columns // (_COLUMNS * _MIN_STEPS)
    splits = max(1, min(programs // tiles, fitting, _MAX_SPLITS if rows <= _SMALL_ROWS else _MAX_LARGE_SPLITS))
    return TileShape(rows, outputs, _COLUMNS, splits, warps, stages)


def whole_shape_by_rule(num_rows: int, num_outputs: int, num_columns: int, num_processors: int) -> TileShape:
    """Return an unmeasured shape with one part of K: its tiles are as narrow as it takes to occupy every processor."""
    shape = shape_by_rule(num_rows, num_outputs, num_columns, num_processors)
    outputs = shape.outputs
    while outputs > _LEAST_OUTPUTS and -(-num_rows // shape.rows) * -(-num_outputs // outputs) < num_processors:
        outputs //= 2
    return replace(shape, outputs=outputs, splits=1)


def candidates(num_rows: int, num_outputs: int, num_columns: int) -> Iterator[TileShape]:
    """Yield the shapes to measure for a product, without those that cannot be the fastest."""
    rows_to_try = [16] if num_rows <= 16 else [r for r in (16, 32, 64, 128) if num_rows / 4 <= r < 2 * num_rows] or [64, 128]
    sizes = product(rows_to_try, (16, 32, 64, 128, 256), (64, 128, 256), (1, 2, 4, 8, 16), (4, 8), (3, 5))
    for rows, outputs, columns, splits, warps, stages in sizes:
        tiles = -(-num_rows // rows) * -(-num_outputs // outputs)
        fits_memory = (rows * 2 + outputs) * columns * stages <= 200 << 10
        fits_warps = 8 <= rows * outputs // (32 * warps) <= 128  # number of sums that a thread keeps
        is_split_well = splits == 1 or (tiles <= 512 and num_columns >= splits * columns * _MIN_STEPS)
        if fits_memory and fits_warps and is_split_well:
            yield TileShape(rows, outputs, columns, splits, warps, stages)


def key_of(kernel: str, num_rows: int, num_outputs: int, num_columns: int) -> str:
    """Return the name of a line of the table: `int8 128 x 1536 x 8960`, rows rounded up."""
    return f"{kernel} {_bucket(num_rows)} x {num_outputs} x {num_columns}"


def tuned_path(device_name: str) -> Path:
    """Return the path of a device's table, by the driver's name of the device: tile_shapes.nvidia_h200.json."""
    return Path(__file__).with_suffix(f".{re.sub('[^a-z0-9]+', '_', device_name.lower())}.json")


def load_tuned(path: Path) -> dict[str, TileShape | None]:
    """Return the table in a file; an empty table if the file does not exist."""
    if not path.exists():
        return {}
    return {key: None if shape is None else TileShape(*shape) for key, shape in json.loads(path.read_text()).items()}


def save_tuned(path: Path, tuned: Mapping[str, TileShape | None]) -> None:
    """Write a table, sorted, with one entry per line."""
    lines = (f"  {json.dumps(key)}: {json.dumps(shape and astuple(shape))}" for key, shape in sorted(tuned.items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _bucket(num_rows: int) -> int:
    return min(1 << max(num_rows - 1, 0).bit_length(), _MAX_ROWS)
