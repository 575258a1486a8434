"""Llama 4: an image is cut into tiles with tokens between columns and behind rows; the whole image follows.

Source: transformers' models/llama4/processing_llama4.py.
"""

from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, ProcessedItem

_RATIO = 0.5


def _placeholder(model: ImageModel) -> str:
    return model.named("fake_image_token", "<|image|>")


def _expand(model: ImageModel, image: ProcessedItem) -> Expansion:
    [rows], [cols] = image.integers("rows"), image.integers("cols")
    line = "<|tile_x_separator|>".join([model.mark] * cols) + "<|tile_y_separator|>"
    num_tiles = rows * cols if rows * cols > 1 else 0
    tiles = line * rows if num_tiles else ""
    return Expansion(f"<|image_start|>{tiles}<|image|>{model.mark}<|image_end|>", num_tiles + 1, _tile_embeds(model))


def _tile_embeds(model: ImageModel) -> int:
    side = model.settings["size"]["height"] // (model.processor.get("patch_size") or model.vision.get("patch_size") or 14)
    ratio: float = model.processor.get("pixel_shuffle_ratio") or model.vision.get("pixel_shuffle_ratio") or _RATIO
    return int(side**2 // round(1 / ratio**2))


def _max_embeds(model: ImageModel) -> int:
    most: int = model.settings["max_patches"]
    return _tile_embeds(model) * (most + 1 if most > 1 else 1)


LLAMA4 = Family(
    "Llama4ImageProcessor",
    _expand,
    _max_embeds,
    kwargs=("max_patches", "resize_to_max_canvas"),
    placeholder=_placeholder,
    message_text=_placeholder,
    stacked=False,
)
