"""Qwen-VL and GLM-V: one embedding for each block of merged patches; the size of an image is chosen by its number of pixels.

Sources: transformers' models/qwen2_vl/image_processing_pil_qwen2_vl.py and models/glm4v/image_processing_pil_glm4v.py. Chat
templates write the marks at both ends of an image.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, Grid, ProcessedItem
from tetrad.tokenizer_svc.media.model_files import ModelFiles

_MAX_ASPECT_RATIO = 200
"""The processors refuse longer images."""


def _grid(model: ImageModel, image: ProcessedItem) -> Grid:
    frames, rows, cols = image.integers("image_grid_thw")
    merge = model.settings["merge_size"]
    return frames, rows // merge, cols // merge


def _expand(model: ImageModel, image: ProcessedItem) -> Expansion:
    return Expansion(model.mark, 1, math.prod(_grid(model, image)))


def _max_embeds(model: ImageModel, *, counts_frames: bool) -> int:
    """Return the number of merged patches of the largest image that `smart_resize` makes.

    It keeps the pixels within [shortest_edge, longest_edge], and both sides multiples of a block. It exceeds them in two cases:
    a long image has at least one row of blocks, and a small one is enlarged to whole blocks.
    """
    block: int = model.settings["patch_size"] * model.settings["merge_size"]
    frames: int = model.settings["temporal_patch_size"] if counts_frames else 1
    most: int = model.settings["size"]["longest_edge"] // frames
    least: int = -(-model.settings["size"]["shortest_edge"] // frames)
    single_row = math.isqrt(_MAX_ASPECT_RATIO * most) // block
    least_blocks = least / block**2
    # Sides of a and b blocks become at most a + 1 and b + 1; the sum of both is largest for the longest image.
    ratio = math.sqrt(_MAX_ASPECT_RATIO)
    enlarged = int(least_blocks + math.sqrt(least_blocks) * (ratio + 1 / ratio) + 1)
    return max(most // block**2, single_row, enlarged)


def _between_vision_marks(model: ImageModel) -> str:
    return f"<|vision_start|>{model.mark}<|vision_end|>"


def _between_image_marks(model: ImageModel) -> str:
    return f"<|begin_of_image|>{model.mark}<|end_of_image|>"


def _single_frame(_: ModelFiles) -> Mapping[str, Any]:
    """Return settings with which rows of pixels hold one copy of the frame: the worker repeats it."""
    return {"temporal_patch_size": 1}


def _expand_embeds(model: ImageModel, image: ProcessedItem, _: int) -> Expansion:
    return _expand(model, image)


_MERGED = partial(Family, expand=_expand, grid=_grid, stacked=False, expand_embeds=_expand_embeds, embeds_grid="image_grid_thw")
QWEN = _MERGED(
    "Qwen2VLImageProcessor",
    max_embeds=partial(_max_embeds, counts_frames=False),
    kwargs=("size", "min_pixels", "max_pixels", "do_resize"),
    message_text=_between_vision_marks,
    settings=_single_frame,
)
GLM = partial(
    _MERGED,
    max_embeds=partial(_max_embeds, counts_frames=True),
    kwargs=("size", "do_resize"),
    message_text=_between_image_marks,
    # Without the copies, its processor would choose other sizes.
    repeats_frames=True,
)
