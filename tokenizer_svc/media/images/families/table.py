"""Table of the families by config.json's model_type."""

from collections.abc import Mapping

from tetrad.tokenizer_svc.media.images.families.cropped import GEMMA3, INTERNVL, LLAVA
from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.lfm2 import LFM2
from tetrad.tokenizer_svc.media.images.families.llama4 import LLAMA4
from tetrad.tokenizer_svc.media.images.families.llava_next import LLAVA_NEXT
from tetrad.tokenizer_svc.media.images.families.llava_onevision import LLAVA_ONEVISION
from tetrad.tokenizer_svc.media.images.families.merged import GLM, QWEN
from tetrad.tokenizer_svc.media.images.families.rows import PIXTRAL
from tetrad.tokenizer_svc.media.images.families.tiled import TILED
from tetrad.tokenizer_svc.media.model_files import ModelFiles

FAMILIES: Mapping[str, Family] = {
    "gemma3": GEMMA3,
    "glm46v": GLM("Glm46VImageProcessor"),
    "glm4v": GLM("Glm4vImageProcessor"),
    "glm4v_moe": GLM("Glm4vImageProcessor"),
    "idefics3": TILED("Idefics3ImageProcessor"),
    "internvl": INTERNVL,
    "lfm2_vl": LFM2,
    "llama4": LLAMA4,
    "llava": LLAVA,
    "llava of pixtral": PIXTRAL,
    "llava_next": LLAVA_NEXT,
    "llava_onevision": LLAVA_ONEVISION,
    "mistral3": PIXTRAL,
    "qwen2_5_vl": QWEN,
    "qwen2_vl": QWEN,
    "qwen3_5": QWEN,
    "qwen3_5_moe": QWEN,
    "qwen3_vl": QWEN,
    "qwen3_vl_moe": QWEN,
    "smolvlm": TILED("SmolVLMImageProcessor"),
}
"""Families by model_type, or by model_type and that of the vision tower."""


def family_of(files: ModelFiles) -> Family | None:
    """Return the family of a model; None if none is known."""
    model_type = str(files.config.get("model_type"))
    tower = str(files.vision.get("model_type"))
    return FAMILIES.get(f"{model_type} of {tower}") or FAMILIES.get(model_type)
