"""Lfm2Processor: LFM2-VL's image processor on Pillow and numpy; transformers' own needs torchvision.

Runs in the image process, in place of a class of transformers in PilProcessor. A large image is cut into tiles of one size, and
the whole image follows; a small one is resized alone. Pixels become rows of patches, channels last.
Source: transformers' models/lfm2_vl/image_processing_lfm2_vl.py.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tetrad.tokenizer_svc.media.items import MediaError

_MOST_TILES = 64
_DEFAULTS: Mapping[str, Any] = {
    "downsample_factor": 2,
    "do_image_splitting": True,
    "min_tiles": 2,
    "max_tiles": 10,
    "use_thumbnail": True,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "encoder_patch_size": 16,
    "tile_size": 512,
    "max_pixels_tolerance": 2.0,
    "resample": 2,
}

Size = tuple[int, int]
"""Height and width in pixels."""


class Settings(TypedDict, total=False):
    """The settings, in transformers' names."""

    downsample_factor: int
    do_image_splitting: bool
    min_tiles: int
    max_tiles: int
    use_thumbnail: bool
    min_image_tokens: int
    max_image_tokens: int
    encoder_patch_size: int
    tile_size: int
    max_pixels_tolerance: float
    resample: int


class Lfm2Processor:
    """See the header; its methods are those of transformers' processors that PilProcessor calls.

    Args:
        settings: values of preprocessor_config.json; those of normalisation are the worker's.
    """

    valid_kwargs = Settings

    def __init__(self, **settings: Any) -> None:
        self._settings = {**_DEFAULTS, **{name: value for name, value in settings.items() if name in _DEFAULTS}}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return dict(self._settings)

    def preprocess(self, images: Sequence[Image.Image], **kwargs: Any) -> dict[str, Any]:
        """Return the tensors of one image.

        Raises MediaError for settings of other types or beyond the limits.
        """
        settings = {**self._settings, **{name: value for name, value in kwargs.items() if name in _DEFAULTS}}
        for name in ("min_tiles", "max_tiles", "min_image_tokens", "max_image_tokens"):
            if type(settings[name]) is not int or settings[name] < 1:
                raise MediaError(f"{name} is {settings[name]!r:.40}; it must be a number of at least 1")
        if settings["max_tiles"] > _MOST_TILES or settings["min_tiles"] > settings["max_tiles"]:
            tiles = f"min_tiles {settings['min_tiles']} and max_tiles {settings['max_tiles']}"
            raise MediaError(f"the image has {tiles}; the first is at most the second, which is at most {_MOST_TILES}")
        [image] = images
        height, width = _whole_size(settings, image.height, image.width)
        if height * width > image.height * image.width + (1 << 26):
            raise MediaError(f"the image would be resized to {height * width} pixels")
        parts, rows, cols = [], 1, 1
        if settings["do_image_splitting"] and settings["max_tiles"] > 1 and _is_large(settings, image.height, image.width):
            rows, cols = _grid(settings, image.height, image.width)
            parts = _tiles(image, rows, cols, settings)
        if not parts or (settings["use_thumbnail"] and rows * cols > 1):
            parts.append(_resized(image, (height, width), settings))
        side = settings["encoder_patch_size"]
        shapes = np.array([[part.height // side, part.width // side] for part in parts])
        return {
            "pixel_values": np.concatenate([_patches(part, side) for part in parts]),
            "spatial_shapes": shapes[None],
            "rows": [rows],
            "cols": [cols],
            "image_sizes": [[height, width]],
        }


def _resized(image: Image.Image, size: Size, settings: Mapping[str, Any]) -> Image.Image:
    return image.resize((size[1], size[0]), Image.Resampling(int(settings["resample"])))


def _tiles(image: Image.Image, rows: int, cols: int, settings: Mapping[str, Any]) -> list[Image.Image]:
    side = settings["tile_size"]
    whole = _resized(image, (rows * side, cols * side), settings)
    return [
        whole.crop((col * side, row * side, (col + 1) * side, (row + 1) * side)) for row in range(rows) for col in range(cols)
    ]


def _patches(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Return rows of patches [N, side * side * 3]."""
    pixels = np.asarray(image.convert("RGB"))
    rows, cols = pixels.shape[0] // side, pixels.shape[1] // side
    return pixels.reshape(rows, side, cols, side, 3).transpose(0, 2, 1, 3, 4).reshape(rows * cols, -1)


def _whole_size(settings: Mapping[str, Any], height: int, width: int) -> Size:
    """Return the size of an image that is not cut: multiples of a merged patch, within the numbers of tokens."""
    factor = settings["encoder_patch_size"] * settings["downsample_factor"]
    least, most = settings["min_image_tokens"] * factor**2, settings["max_image_tokens"] * factor**2
    rows, cols = (max(factor, round(side / factor) * factor) for side in (height, width))
    if rows * cols > most:
        scale = math.sqrt(height * width / most)
        return max(factor, math.floor(height / scale / factor) * factor), max(
            factor, math.floor(width / scale / factor) * factor
        )
    if rows * cols < least:
        scale = math.sqrt(least / (height * width))
        return math.ceil(height * scale / factor) * factor, math.ceil(width * scale / factor) * factor
    return rows, cols


def _is_large(settings: Mapping[str, Any], height: int, width: int) -> bool:
    side = settings["encoder_patch_size"]
    factor = side * settings["downsample_factor"]
    rows, cols = (max(side, round(length / factor) * factor) for length in (height, width))
    return bool(rows * cols > settings["max_image_tokens"] * factor**2 * settings["max_pixels_tolerance"])


def _grid(settings: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of tiles: the ratio that is closest to the image's, and of equal ones by its area."""
    least, most = settings["min_tiles"], settings["max_tiles"]
    sides = range(1, most + 1)
    ratios = sorted({(w, h) for w in sides for h in sides if least <= w * h <= most}, key=lambda each: each[0] * each[1])
    best, smallest = (1, 1), math.inf
    for cols, rows in ratios:
        difference = abs(width / height - cols / rows)
        is_filled = height * width > 0.5 * settings["tile_size"] ** 2 * cols * rows
        if difference < smallest or (difference == smallest and is_filled):
            best, smallest = (rows, cols), difference
    return best
