"""Llama4Processor: Llama 4's image processor on Pillow and numpy; transformers' own needs torchvision.

Runs in the image process, in place of a class of transformers in PilProcessor. An image is resized without distortion, filled
up with black to the best of the resolutions that a number of square tiles can have, and cut into these; the whole image follows
as one more tile. Source: transformers' models/llama4/image_processing_llama4.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tetrad.tokenizer_svc.media.items import MediaError

_MOST_TILES = 64
_DEFAULTS: Mapping[str, Any] = {
    "size": {"height": 336, "width": 336},
    "max_patches": 16,
    "resize_to_max_canvas": False,
    "resample": 2,
}

Size = tuple[int, int]
"""Height and width in pixels, or rows and columns of tiles."""


class Settings(TypedDict, total=False):
    """The settings, in transformers' names."""

    size: Mapping[str, int]
    max_patches: int
    resize_to_max_canvas: bool
    resample: int


class Llama4Processor:
    """See the header; its methods are those of transformers' processors that PilProcessor calls.

    Args:
        settings: values of preprocessor_config.json; those of normalisation are the worker's.
    """

    valid_kwargs = Settings

    def __init__(self, **settings: Any) -> None:
        self._settings = {**_DEFAULTS, **{name: value for name, value in settings.items() if name in _DEFAULTS}}
        height, width = self._settings["size"]["height"], self._settings["size"]["width"]
        if height != width:
            raise ValueError(f"size is {height} x {width} pixels; the tiles of this model are square")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return dict(self._settings)

    def preprocess(self, images: Sequence[Image.Image], **kwargs: Any) -> dict[str, Any]:
        """Return the tiles of one image [N, 3, side, side], and their rows and columns.

        Raises MediaError for settings of other types or beyond the limits.
        """
        settings = {**self._settings, **{name: value for name, value in kwargs.items() if name in _DEFAULTS}}
        most, fills = settings["max_patches"], settings["resize_to_max_canvas"]
        if type(most) is not int or not 1 <= most <= _MOST_TILES:
            raise MediaError(f"max_patches is {most!r:.40}; it must be a number from 1 to {_MOST_TILES}")
        if type(fills) is not bool:
            raise MediaError(f"resize_to_max_canvas is {fills!r:.40}; it must be true or false")
        [image] = images
        side, resample = int(settings["size"]["height"]), Image.Resampling(int(settings["resample"]))
        rows, cols = best_grid((image.height, image.width), side, most, fills=fills)
        height, width = _undistorted((image.height, image.width), (rows * side, cols * side), None if fills else side)
        canvas = Image.new("RGB", (cols * side, rows * side))
        canvas.paste(image.resize((width, height), resample))
        parts = [_tiles(canvas, rows, cols, side)]
        if rows * cols > 1:
            parts.append(_tiles(image.resize((side, side), resample), 1, 1, side))
        return {"pixel_values": np.concatenate(parts), "rows": [[rows]], "cols": [[cols]]}


def best_grid(size: Size, side: int, most: int, *, fills: bool) -> Size:
    """Return rows and columns of the tiles of an image of this size, in pixels.

    Of the grids of at most `most` tiles, one is chosen that enlarges the image least, or else makes it smaller least; of those
    that scale it alike, the smallest.

    Args:
        size: height and width of the image.
        side: of a tile, in pixels.
        most: maximum number of tiles.
        fills: whether the image is enlarged most in place of least.
    """
    grids = np.array(_grids(most))
    # transformers computes in float32, and compares scales for equality.
    heights, widths = ((grids * side).astype(np.float32) / np.array(size, np.float32)).T
    scales = np.where(heights > widths, widths, heights)
    enlarging = scales[scales >= 1]
    chosen = (enlarging.max() if fills else enlarging.min()) if len(enlarging) else scales.max()
    alike = grids[scales == chosen]
    rows, cols = alike[np.argmin(alike.prod(axis=1))]
    return int(rows), int(cols)


def _grids(most: int) -> list[Size]:
    """Return rows and columns of all grids, in transformers' order: grids of one shape stand together."""
    by_shape: dict[float, list[Size]] = {}
    for number in range(most, 0, -1):
        for rows in range(1, number + 1):
            if number % rows == 0:
                by_shape.setdefault(rows / (number // rows), []).append((rows, number // rows))
    return [grid for grids in by_shape.values() for grid in grids]


def _undistorted(size: Size, target: Size, least: int | None) -> Size:
    """Return the size of an image within a target, in its own proportions; `least`: it is not enlarged beyond it.

    As in transformers, divisions of the target's sides are in float32, those of the image's own in float64.
    """
    bounds: list[Any] = [np.float32(side) for side in target]
    if least is not None:
        own = [float(max(side, least)) for side in size]
        bounds = [min(pair) for pair in zip(own, bounds, strict=True)]
    scale_rows, scale_cols = bounds[0] / size[0], bounds[1] / size[1]
    if scale_cols < scale_rows:
        height, width = min(int(size[0] * scale_cols), int(bounds[0])), int(bounds[1])
    else:
        height, width = int(bounds[0]), min(int(size[1] * scale_rows), int(bounds[1]))
    return max(height, 1), max(width, 1)


def _tiles(image: Image.Image, rows: int, cols: int, side: int) -> NDArray[np.uint8]:
    """Return the tiles of an image [rows * cols, 3, side, side], row by row."""
    pixels = np.asarray(image.convert("RGB")).reshape(rows, side, cols, side, 3)
    return pixels.transpose(0, 2, 4, 1, 3).reshape(rows * cols, 3, side, side)
