"""LLaVA-OneVision: as LLaVA-NeXT, but crops of many embeddings are made smaller, and several images of a prompt are not split.

Source: transformers' models/llava_onevision/processing_llava_onevision.py.
"""

import math
from collections.abc import Iterator

from tetrad.tokenizer_svc.media.images.families.cropped import crop_size
from tetrad.tokenizer_svc.media.images.families.family import Family, embeds_as_marks
from tetrad.tokenizer_svc.media.images.families.llava_next import best_resolution, unpadded
from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, ProcessedItem

_ASPECT_RATIO = "anyres_max_9"
_MOST_SURPLUS = 1.1


def _expand(model: ImageModel, image: ProcessedItem) -> Expansion:
    is_split = image.integers("batch_num_images") == [1]
    height, width = image.integers("image_sizes")
    return Expansion(model.mark, 1, _num_split(model, height, width) if is_split else _num_whole(model) + 1)


def _num_split(model: ImageModel, height: int, width: int) -> int:
    """Return the number of embeddings of an image of this size, in pixels, that is alone in its prompt."""
    best = best_resolution(height, width, model.settings["image_grid_pinpoints"])
    return _num_whole(model) + _num_rows_and_ends(model, *unpadded(height, width, *_grid(model, *best)))


def _num_rows_and_ends(model: ImageModel, rows: int, cols: int) -> int:
    """Return the number of embeddings of crops together, with one at the end of each row."""
    given = model.processor.get("vision_aspect_ratio") or model.config.get("vision_aspect_ratio") or _ASPECT_RATIO
    ratio = math.sqrt(rows * cols / (int(given.removeprefix("anyres_max_")) * _side(model) ** 2))
    if ratio > _MOST_SURPLUS:
        rows, cols = int(rows // ratio), int(cols // ratio)
    return rows * cols + rows


def _num_whole(model: ImageModel) -> int:
    strategy = model.processor.get("vision_feature_select_strategy") or model.config.get("vision_feature_select_strategy")
    return _side(model) ** 2 - (strategy == "default")


def _side(model: ImageModel) -> int:
    """Return the number of rows, and of columns, of the embeddings of a crop."""
    count = model.processor.get("num_image_tokens")
    return math.isqrt(count) if count else model.vision["image_size"] // model.vision["patch_size"]


def _grid(model: ImageModel, height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the embeddings of a resolution, in pixels."""
    crop_height, crop_width = crop_size(model)
    return _side(model) * (height // crop_height), _side(model) * (width // crop_width)


def _cuts(model: ImageModel) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of all resolutions without padding, which is above and below, or left and right."""
    for height, width in model.settings["image_grid_pinpoints"]:
        rows, cols = _grid(model, height, width)
        yield from ((kept, cols) for kept in range(1, rows + 1))
        yield from ((rows, kept) for kept in range(1, cols + 1))


def _max_embeds(model: ImageModel) -> int:
    return _num_whole(model) + max(_num_rows_and_ends(model, rows, cols) for rows, cols in set(_cuts(model)))


LLAVA_ONEVISION = Family(
    "LlavaOnevisionImageProcessor", _expand, _max_embeds, splits_single=True, expand_embeds=embeds_as_marks
)
