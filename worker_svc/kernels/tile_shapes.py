"""Tile shapes of the quantized products: data, looked up by the size of the product, so that nothing tunes while serving.

The shapes measured on a device are in a file of its name beside this one; other sizes and devices have shapes by rule. Rows are
rounded up to a power of two: a table has one line for 65 to 128 of them.
Dims: T rows of activations, N outputs, K inputs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from itertools import product
from pathlib import Path

import torch

MAX_SPLIT_TILES = 4096
"""A product of more tiles fills every device without being split."""

_FEW_ROWS = 16  # the least that a tensor core takes
_COLUMNS = 128
_LEAST_COLUMNS = 32  # that 4 bits are packed in
_USUAL_BYTES = 2  # of an activation
_MIN_STEPS = 2  # of a split's way along K
_MAX_SPLITS = 16
_MAX_ROWS = 8192  # more are tiled as so many


@dataclass(frozen=True, slots=True)
class TileShape:
    """The tiles of a product.

    Attributes:
        rows: of a tile, at least 16.
        outputs: of a tile, at least 16.
        columns: of K that are multiplied at once; a kernel whose groups are smaller takes a group.
        splits: parts of K, each multiplied by a program of its own.
        warps: of a program.
        stages: loads that are under way at once.
    """

    rows: int
    outputs: int
    columns: int
    splits: int
    warps: int
    stages: int

    def for_values_of(self, value_bytes: int) -> "TileShape":
        """Return the shape for activations of so many bytes each: those of float32 would not fit where those of two do."""
        if value_bytes <= _USUAL_BYTES:
            return self
        return replace(self, columns=max(self.columns // 2, _LEAST_COLUMNS), stages=min(self.stages, 2))


class TileShapes:
    """Shapes on one device.

    Args:
        num_processors: streaming multiprocessors of the device.
        tuned: key_of(...) -> what was measured to be best; None: torch's own product, where there is one.
    """

    def __init__(self, num_processors: int, tuned: Mapping[str, TileShape | None] | None = None) -> None:
        self._num_processors = num_processors
        self._tuned = dict(tuned or {})

    def of(self, kernel: str, num_rows: int, num_outputs: int, num_columns: int) -> TileShape | None:
        """Return the shape for a product [T, K] x [N, K]^T; None: torch's own is faster."""
        key = key_of(kernel, num_rows, num_outputs, num_columns)
        if key not in self._tuned:
            self._tuned[key] = shape_by_rule(_bucket(num_rows), num_outputs, num_columns, self._num_processors)
        return self._tuned[key]

    def set(self, kernel: str, num_rows: int, num_outputs: int, num_columns: int, shape: TileShape | None) -> None:
        """Use this shape from now on; for measurements."""
        self._tuned[key_of(kernel, num_rows, num_outputs, num_columns)] = shape


def shapes_of(device: torch.device) -> TileShapes:
    """Return the shapes of a device; host memory counts as a small unmeasured device."""
    if device.type != "cuda":
        return TileShapes(num_processors=4)
    properties = torch.cuda.get_device_properties(device)
    return TileShapes(properties.multi_processor_count, load_tuned(tuned_path(properties.name)))


def shape_by_rule(num_rows: int, num_outputs: int, num_columns: int, num_processors: int) -> TileShape:
    """Return a shape that should do: tiles as large as the rows fill, K split until every processor has work.

    With few rows the device reads weights and little else: wide tiles widen more weights for each activation that they load.
    """
    if num_rows <= _FEW_ROWS:
        rows, outputs, warps, stages = _FEW_ROWS, 64, 4, 4
    elif num_rows <= 64:
        rows, outputs, warps, stages = (32 if num_rows <= 32 else 64), 64, 4, 4
    else:
        rows, outputs, warps, stages = 128, 128, 8, 3
    tiles = -(-num_rows // rows) * -(-num_outputs // outputs)
    programs = num_processors * (2 if warps == 4 else 1)
    fitting = num_columns // (_COLUMNS * _MIN_STEPS)
    splits = max(1, min(programs // tiles, fitting, _MAX_SPLITS))
    return TileShape(rows, outputs, _COLUMNS, splits, warps, stages)


def candidates(num_rows: int, num_outputs: int, num_columns: int) -> Iterator[TileShape]:
    """Yield the shapes that are worth measuring for a product, the few that cannot win left out."""
    rows_to_try = [16] if num_rows <= 16 else [r for r in (16, 32, 64, 128) if num_rows / 4 <= r < 2 * num_rows] or [64, 128]
    sizes = product(rows_to_try, (16, 32, 64, 128, 256), (64, 128, 256), (1, 2, 4, 8, 16), (4, 8), (3, 5))
    for rows, outputs, columns, splits, warps, stages in sizes:
        tiles = -(-num_rows // rows) * -(-num_outputs // outputs)
        fits_memory = (rows * 2 + outputs) * columns * stages <= 200 << 10
        fits_warps = 8 <= rows * outputs // (32 * warps) <= 128  # sums that a thread keeps
        is_split_well = splits == 1 or (tiles <= 512 and num_columns >= splits * columns * _MIN_STEPS)
        if fits_memory and fits_warps and is_split_well:
            yield TileShape(rows, outputs, columns, splits, warps, stages)


def key_of(kernel: str, num_rows: int, num_outputs: int, num_columns: int) -> str:
    """Return the name of a line of the table: `int8 128 x 1536 x 8960`, rows rounded up."""
    return f"{kernel} {_bucket(num_rows)} x {num_outputs} x {num_columns}"


def tuned_path(device_name: str) -> Path:
    """Return the table of a device, by the name that its driver gives it: tile_shapes.nvidia_h200.json."""
    return Path(__file__).with_suffix(f".{re.sub('[^a-z0-9]+', '_', device_name.lower())}.json")


def load_tuned(path: Path) -> dict[str, TileShape | None]:
    """Return a table; an empty one for an unmeasured device."""
    if not path.exists():
        return {}
    return {key: None if shape is None else TileShape(*shape) for key, shape in json.loads(path.read_text()).items()}


def save_tuned(path: Path, tuned: Mapping[str, TileShape | None]) -> None:
    """Write a table, a line an entry, sorted."""
    lines = (f"  {json.dumps(key)}: {json.dumps(shape and astuple(shape))}" for key, shape in sorted(tuned.items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _bucket(num_rows: int) -> int:
    return min(1 << max(num_rows - 1, 0).bit_length(), _MAX_ROWS)
