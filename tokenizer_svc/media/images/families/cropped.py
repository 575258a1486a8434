"""LLaVA, InternVL and Gemma 3: an image becomes one or more crops of a fixed size, each with the same number of embeddings.

Sources: transformers' models/llava/processing_llava.py, models/internvl/processing_internvl.py and
models/gemma3/processing_gemma3.py.
"""

from collections.abc import Mapping
from typing import Any

from tetrad.tokenizer_svc.media.images.families.family import Family, embeds_as_marks
from tetrad.tokenizer_svc.media.images.families.model import ImageModel
from tetrad.tokenizer_svc.media.items import Expansion, ProcessedItem
from tetrad.tokenizer_svc.media.model_files import ModelFiles


def crop_embeds(model: ImageModel, height: int, width: int) -> int:
    """Return the number of embeddings of a crop for models with a CLIP tower, in pixels."""
    given = model.processor.get("patch_size")
    side: int = given or model.vision["patch_size"]
    # Files of older models leave these out; CLIP's tower has one embedding that stands for the whole crop.
    added: int = model.processor.get("num_additional_image_tokens", 0 if given else 1)
    strategy = model.processor.get("vision_feature_select_strategy") or model.config.get("vision_feature_select_strategy")
    return (height // side) * (width // side) + added - (strategy == "default")


def crop_size(model: ImageModel) -> tuple[int, int]:
    """Return height and width of a crop, in pixels."""
    settings = model.settings
    size = settings["crop_size"] if settings.get("do_center_crop") and settings.get("crop_size") else settings["size"]
    return size["height"], size["width"]


def _expand_single(model: ImageModel, image: ProcessedItem) -> Expansion:
    height, width = image.shape("pixel_values")[-2:]
    return Expansion(model.mark, 1, crop_embeds(model, height, width))


def _max_single(model: ImageModel) -> int:
    return crop_embeds(model, *crop_size(model))


def _expand_several(model: ImageModel, image: ProcessedItem) -> Expansion:
    return _expand_embeds(model, image, _seq_length(model) * image.shape("pixel_values")[0])


def _expand_embeds(model: ImageModel, _: ProcessedItem, num_embeds: int) -> Expansion:
    start, end = model.named("start_image_token", "<img>"), model.named("end_image_token", "</img>")
    return Expansion(f"{start}{model.mark}{end}", 1, num_embeds)


def _max_several(model: ImageModel) -> int:
    most = model.settings["max_patches"]
    # Several crops are followed by the whole image.
    return _seq_length(model) * (most + 1 if model.settings["crop_to_patches"] and most > 1 else 1)


def _several_settings(_: ModelFiles) -> Mapping[str, Any]:
    return {"crop_to_patches": True}


def _seq_length(model: ImageModel) -> int:
    return int(model.processor.get("image_seq_length") or model.config.get("image_seq_length") or 256)


def _gemma_placeholder(model: ImageModel) -> str:
    return model.named("boi_token", "<start_of_image>")


def _expand_gemma(model: ImageModel, image: ProcessedItem) -> Expansion:
    end = model.named("eoi_token", "<end_of_image>")
    one = f"\n\n{_gemma_placeholder(model)}{model.mark}{end}\n\n"
    [num_crops] = image.integers("num_crops")
    if not num_crops:
        return Expansion(one, 1, _gemma_length(model))
    crops = " ".join([one] * num_crops)
    text = f"Here is the original image {one} and here are some crops to help you see better {crops}"
    return Expansion(text, 1 + num_crops, _gemma_length(model))


def _max_gemma(model: ImageModel) -> int:
    return _gemma_length(model) * (1 + int(model.settings["pan_and_scan_max_num_crops"]))


def _gemma_length(model: ImageModel) -> int:
    return int(model.processor.get("image_seq_length") or model.config.get("mm_tokens_per_image") or 256)


def _gemma_settings(_: ModelFiles) -> Mapping[str, Any]:
    return {"do_pan_and_scan": False, **_PAN_AND_SCAN}


_PAN_AND_SCAN: Mapping[str, Any] = {
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
"""transformers' settings of a long image that is seen whole and in crops, if a request asks for it."""
LLAVA = Family("CLIPImageProcessor", _expand_single, _max_single, expand_embeds=embeds_as_marks)
INTERNVL = Family(
    "GotOcr2ImageProcessor",
    _expand_several,
    _max_several,
    kwargs=("crop_to_patches", "min_patches", "max_patches"),
    settings=_several_settings,
    stacked=False,
    expand_embeds=_expand_embeds,
)
GEMMA3 = Family(
    "Gemma3ImageProcessor",
    _expand_gemma,
    _max_gemma,
    kwargs=("do_pan_and_scan", *_PAN_AND_SCAN),
    placeholder=_gemma_placeholder,
    message_text=_gemma_placeholder,
    settings=_gemma_settings,
    stacked=False,
)
