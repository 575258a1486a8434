"""LLaVA-NeXT: the whole image, then a larger one in crops without its padding, with an embedding at the end of each row.

Source: transformers' models/llava_next/processing_llava_next.py.
"""

from tetrad.tokenizer_svc.media.images.families.cropped import crop_embeds, crop_size
from tetrad.tokenizer_svc.media.images.families.family import Family, embeds_as_marks
from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, ProcessedItem


def _expand(model: ImageModel, image: ProcessedItem) -> Expansion:
    height, width = image.integers("image_sizes")
    return Expansion(model.mark, 1, _num_embeds(model, height, width))


def _num_embeds(model: ImageModel, height: int, width: int) -> int:
    """Return the number of embeddings of an image of this size, in pixels."""
    crop_height, crop_width = crop_size(model)
    best_height, best_width = best_resolution(height, width, model.settings["image_grid_pinpoints"])
    side: int = model.processor.get("patch_size") or model.vision["patch_size"]
    rows, cols = (crop_height // side) * (best_height // crop_height), (crop_width // side) * (best_width // crop_width)
    rows, cols = unpadded(height, width, rows, cols)
    return rows * cols + rows + crop_embeds(model, crop_height, crop_width)


def unpadded(height: int, width: int, rows: int, cols: int) -> tuple[int, int]:
    """Return rows and columns of embeddings without those of the padding of an image of this size, in pixels."""
    if width / height > cols / rows:
        kept = int(round(height * (cols / width), 7))
        return rows - (rows - kept) // 2 * 2, cols
    kept = int(round(width * (rows / height), 7))
    return rows, cols - (cols - kept) // 2 * 2


def best_resolution(height: int, width: int, resolutions: list[list[int]]) -> tuple[int, int]:
    """Return the resolution that keeps most pixels of an image, and of these the one with the fewest others.

    Source: transformers' `select_best_resolution`.
    """

    def merit(resolution: list[int]) -> tuple[int, int]:
        rows, cols = resolution
        scale = min(cols / width, rows / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - rows * cols

    rows, cols = max(resolutions, key=merit)
    return rows, cols


def _max_embeds(model: ImageModel) -> int:
    """Return the number for an image of each resolution's own shape, which has no padding, and of those the largest."""
    return max(_num_embeds(model, rows, cols) for rows, cols in model.settings["image_grid_pinpoints"])


LLAVA_NEXT = Family("LlavaNextImageProcessor", _expand, _max_embeds, expand_embeds=embeds_as_marks)
