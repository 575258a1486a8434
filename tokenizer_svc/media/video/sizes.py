"""Sizes: which size the frames of a video are resized to, by the kind of processor.

Source: `smart_resize` and `resize` of transformers' models/*/video_processing_*.py, whose own modules need torchvision. Runs in
the video process; knows numbers only.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from tetrad.services.models.video_files import MOST_VIDEO_EMBEDS
from tetrad.tokenizer_svc.media.items import MediaError

Size = tuple[int, int]
"""Height and width in pixels."""
_MAX_ASPECT_RATIO = 200
_MOST_SIDE = 4096


def of_frames_in_grid(settings: Mapping[str, Any], num_frames: int, size: Size) -> list[Size]:
    """Return the size for Qwen2-VL and Qwen2.5-VL: limits count the pixels of one frame.

    Frames of long videos are made smaller, until the video has no more embeddings than are encoded.
    """
    height, width = size
    _check_ratio(height, width)
    factor = settings["patch_size"] * settings["merge_size"]
    least, most = _edges(settings)
    times = -(-num_frames // settings["temporal_patch_size"])
    most = min(most, max(MOST_VIDEO_EMBEDS // times, 1) * factor**2)
    rows, cols = round(height / factor) * factor, round(width / factor) * factor
    if rows * cols > most:
        scale = math.sqrt(height * width / most)
        rows, cols = (max(factor, math.floor(side / scale / factor) * factor) for side in size)
    elif rows * cols < least:
        scale = math.sqrt(least / (height * width))
        rows, cols = (math.ceil(side * scale / factor) * factor for side in size)
    return [(rows, cols)]


def of_video_in_grid(settings: Mapping[str, Any], num_frames: int, size: Size) -> list[Size]:
    """Return the size for Qwen3-VL and GLM-V: limits count the pixels of all frames."""
    height, width = size
    factor, frames = settings["patch_size"] * settings["merge_size"], settings["temporal_patch_size"]
    num_frames = max(num_frames, frames)  # transformers refuses videos of one frame
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_ratio(height, width)
    least, most = _edges(settings)
    most = min(most, MOST_VIDEO_EMBEDS * frames * factor**2)
    rows, cols = round(height / factor) * factor, round(width / factor) * factor
    times = round(num_frames / frames) * frames
    if times * rows * cols > most:
        scale = math.sqrt(num_frames * height * width / most)
        rows, cols = (max(factor, math.floor(side / scale / factor) * factor) for side in (height, width))
    elif times * rows * cols < least:
        scale = math.sqrt(least / (num_frames * height * width))
        rows, cols = (math.ceil(side * scale / factor) * factor for side in (height, width))
    return [(rows, cols)]


def of_settings(settings: Mapping[str, Any], _: int, __: Size) -> list[Size]:
    """Return the size that the settings have, for LLaVA-OneVision and InternVL."""
    size = settings["size"]
    return [(int(size["height"]), int(size["width"]))]


def of_tile(settings: Mapping[str, Any], _: int, size: Size) -> list[Size]:
    """Return both sizes for SmolVLM: of its longest edge, and then of a tile."""
    height, width = size
    longest, tile = settings["size"]["longest_edge"], settings["max_image_size"]["longest_edge"]
    longest = min(_MOST_SIDE, longest)
    ratio = width / height
    if width >= height:
        rows, cols = int(longest / ratio), longest
        rows += rows % 2
    else:
        rows, cols = longest, int(longest * ratio)
        cols += cols % 2
    return [(max(rows, 1), max(cols, 1)), (tile, tile)]


SIZES: Mapping[str, Callable[[Mapping[str, Any], int, Size], list[Size]]] = {
    "frames in grid": of_frames_in_grid,
    "video in grid": of_video_in_grid,
    "settings": of_settings,
    "tile": of_tile,
}
"""Name of a rule -> sizes that frames are resized to, one behind the other, by settings, number of frames and their size."""


def _edges(settings: Mapping[str, Any]) -> tuple[int, int]:
    size = settings["size"]
    least, most = size.get("shortest_edge"), size.get("longest_edge")
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise MediaError(f"the video processor's size {size!r:.80} has no shortest_edge and longest_edge")
    return least, most


def _check_ratio(height: int, width: int) -> None:
    ratio = max(height, width) / min(height, width)
    if ratio > _MAX_ASPECT_RATIO:
        raise MediaError(f"absolute aspect ratio must be smaller than {_MAX_ASPECT_RATIO}, got {ratio:g}")
