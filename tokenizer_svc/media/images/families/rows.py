"""Pixtral and Mistral 3: an image keeps its shape; each row of patches ends with a token of its own, the last one with another.

Source: transformers' models/pixtral/processing_pixtral.py.
"""

from collections.abc import Mapping
from typing import Any

from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, ProcessedItem
from tetrad.tokenizer_svc.media.model_files import ModelFiles


def _side(files: ModelFiles) -> int:
    """Return the side of merged patches, in pixels."""
    side: int = files.processor.get("patch_size") or files.vision.get("patch_size") or 16
    merge: int = files.processor.get("spatial_merge_size") or files.config.get("spatial_merge_size") or 1
    return side * merge


def _settings(files: ModelFiles) -> Mapping[str, Any]:
    return {"patch_size": {"height": _side(files), "width": _side(files)}}


def _expand(model: ImageModel, image: ProcessedItem) -> Expansion:
    height, width = image.integers("image_sizes")
    rows, cols = height // _side(model), width // _side(model)
    row_end, end = model.named("image_break_token", "[IMG_BREAK]"), model.named("image_end_token", "[IMG_END]")
    text = row_end.join([model.mark] * rows) + end
    return Expansion(text, rows, cols)


def _max_embeds(model: ImageModel) -> int:
    size = model.settings["size"]
    longest = size.get("longest_edge")
    height, width = (longest, longest) if longest else (size["height"], size["width"])
    rows: int = -(-height // _side(model))
    cols: int = -(-width // _side(model))
    return rows * cols


PIXTRAL = Family("PixtralImageProcessor", _expand, _max_embeds, kwargs=("size",), settings=_settings)
