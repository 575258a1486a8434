"""Families: how the models of each family write an image in a prompt, as transformers' processors do.

A table of rules by config.json's model_type. A rule reads facts of the model and of one processed image, and returns token
ids; `expansion.py` places them in prompts. Sources: `replace_image_token` of transformers' models/*/processing_*.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tetrad.tokenizer_svc.images.model import ImageModel, ProcessedImage
from tetrad.tokenizer_svc.images.sizes import max_merged_patches

Expand = Callable[[ImageModel, ProcessedImage], list[int]]
Grid = tuple[int, int, int]


def _no_grid(*_: object) -> Grid | None:
    return None


def _image_text(model: ImageModel) -> str:
    return model.image_text


@dataclass(frozen=True)
class Family:
    """The rules of a family.

    Attributes:
        image_processor: the image processor of a model whose files name none.
        expand: returns the ids that replace an image's placeholder; those that take an embedding are `model.image_id`.
        max_embeds: returns the number of embeddings of the largest image.
        kwargs: settings of the image processor that a request may change: those that leave the tower's input as it is.
        placeholder: returns the text of an image in a message for templates that read only texts, as in vLLM.
        grid: returns frames, rows and columns of the embeddings, for models whose positions have three axes.
        stacked: see PilProcessor.
        repeats_frames: see PilProcessor.
    """

    image_processor: str
    expand: Expand
    max_embeds: Callable[[ImageModel], int]
    kwargs: tuple[str, ...] = ()
    placeholder: Callable[[ImageModel], str] = _image_text
    grid: Callable[[ImageModel, ProcessedImage], Grid | None] = _no_grid
    stacked: bool = True
    repeats_frames: bool = False


def _expand_tiles(model: ImageModel, image: ProcessedImage) -> list[int]:
    """SmolVLM and Idefics3: each tile between marks, rows of tiles in lines, at last the whole image."""
    [rows], [cols] = image.integers("rows"), image.integers("cols")
    fake = model.named("fake_image_token", "<fake_token_around_image>")
    whole = model.named("global_image_token", "<global-img>")
    mark = model.image_text
    lines = ["".join(f"{fake}<row_{row}_col_{col}>{mark}" for col in range(1, cols + 1)) for row in range(1, rows + 1)]
    text = "".join(f"{line}\n" for line in [*lines, ""] if rows) + f"{fake}{whole}{mark}{fake}"
    return _repeat_marks(model, model.ids(text), _tile_embeds(model))


def _tile_embeds(model: ImageModel) -> int:
    given = model.processor.get("image_seq_len")
    if given is not None:
        return int(given)
    side = model.vision["image_size"] // model.vision["patch_size"]
    return int(side**2 / model.config.get("scale_factor", 2) ** 2)


def _max_tiles_embeds(model: ImageModel) -> int:
    if not model.settings.get("do_image_splitting", True):
        return _tile_embeds(model)
    longest, tile = model.settings["size"]["longest_edge"], model.settings["max_image_size"]["longest_edge"]
    # An odd edge may be rounded up to an even one.
    side = -(-(longest + longest % 2) // tile)
    return _tile_embeds(model) * (1 if side == 1 else side * side + 1)


def _repeat_marks(model: ImageModel, ids: Any, number: int) -> list[int]:
    repeated = [model.image_id] * number
    return [token_id for each in ids for token_id in (repeated if each == model.image_id else (each,))]


def _expand_crop(model: ImageModel, image: ProcessedImage) -> list[int]:
    """LLaVA: one embedding for each patch, besides those that the tower adds or the model leaves out."""
    height, width = image.shape("pixel_values")[-2:]
    return [model.image_id] * _crop_embeds(model, height, width)


def _crop_embeds(model: ImageModel, height: int, width: int) -> int:
    side: int = model.processor.get("patch_size") or model.vision["patch_size"]
    strategy = model.processor.get("vision_feature_select_strategy") or model.config.get("vision_feature_select_strategy")
    added: int = model.processor.get("num_additional_image_tokens", 0)
    return (height // side) * (width // side) + added - (strategy == "default")


def _max_crop_embeds(model: ImageModel) -> int:
    size = model.settings["crop_size"] if model.settings.get("do_center_crop", True) else model.settings["size"]
    return _crop_embeds(model, size["height"], size["width"])


def _merged_grid(model: ImageModel, image: ProcessedImage) -> Grid:
    frames, rows, cols = image.integers("image_grid_thw")
    merge = model.settings["merge_size"]
    return frames, rows // merge, cols // merge


def _expand_grid(model: ImageModel, image: ProcessedImage) -> list[int]:
    """Qwen-VL and GLM-V: one embedding for each block of merged patches; the template writes the marks around them."""
    frames, rows, cols = _merged_grid(model, image)
    return [model.image_id] * (frames * rows * cols)


def _between_vision_marks(model: ImageModel) -> str:
    return f"<|vision_start|>{model.image_text}<|vision_end|>"


_TILES = partial(Family, expand=_expand_tiles, max_embeds=_max_tiles_embeds, kwargs=("size", "do_image_splitting", "do_resize"))
_QWEN = Family(
    "Qwen2VLImageProcessor",
    _expand_grid,
    max_merged_patches,
    kwargs=("size", "min_pixels", "max_pixels", "do_resize"),
    placeholder=_between_vision_marks,
    grid=_merged_grid,
    stacked=False,
    repeats_frames=True,
)
FAMILIES: Mapping[str, Family] = {
    "idefics3": _TILES("Idefics3ImageProcessor"),
    "llava": Family("CLIPImageProcessor", _expand_crop, _max_crop_embeds),
    "qwen2_5_vl": _QWEN,
    "qwen2_vl": _QWEN,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_vl_moe": _QWEN,
    "smolvlm": _TILES("SmolVLMImageProcessor"),
}
"""Rules by config.json's model_type."""
