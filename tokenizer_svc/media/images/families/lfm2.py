"""LFM2-VL: a large image is cut into tiles, each behind a token of its row and column; the whole image follows.

Source: transformers' models/lfm2_vl/processing_lfm2_vl.py.
"""

import math

from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, ProcessedItem


def _expand(model: ImageModel, image: ProcessedItem) -> Expansion:
    [rows], [cols] = image.integers("rows"), image.integers("cols")
    height, width = image.integers("image_sizes")
    factor = model.settings["encoder_patch_size"] * model.settings["downsample_factor"]
    tile, whole = _tile_embeds(model), (height // factor) * (width // factor)
    has_tiles = rows * cols > 1
    has_whole = not has_tiles or model.settings["use_thumbnail"]
    # All marks stand for equally many tokens.
    repeat = math.gcd(tile if has_tiles else 0, whole if has_whole else 0)
    places = [(row, col) for row in range(1, rows + 1) for col in range(1, cols + 1)] if has_tiles else []
    marks = model.mark * (tile // repeat)
    text = "".join(f"<|img_row_{row}_col_{col}|>{marks}" for row, col in places)
    if has_whole:
        thumbnail = model.named("image_thumbnail_token", "<|img_thumbnail|>") if has_tiles else ""
        text += f"{thumbnail}{model.mark * (whole // repeat)}"
    start, end = model.named("image_start_token", "<|image_start|>"), model.named("image_end_token", "<|image_end|>")
    number = (len(places) * tile + (whole if has_whole else 0)) // repeat
    return Expansion(f"{start}{text}{end}", number, repeat)


def _tile_embeds(model: ImageModel) -> int:
    settings = model.settings
    side: int = math.ceil(settings["tile_size"] // settings["encoder_patch_size"] / settings["downsample_factor"])
    return side**2


def _max_embeds(model: ImageModel) -> int:
    settings = model.settings
    tiles: int = settings["max_tiles"] * _tile_embeds(model) if settings["do_image_splitting"] else 0
    return tiles + int(settings["max_image_tokens"])


LFM2 = Family(
    "Lfm2VlImageProcessor",
    _expand,
    _max_embeds,
    kwargs=("do_image_splitting", "min_tiles", "max_tiles", "min_image_tokens", "max_image_tokens"),
    stacked=False,
)
