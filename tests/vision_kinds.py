"""Settings of a tiny model of each family that reads images: special tokens, image processor, config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


@dataclass(frozen=True)
class VisionKind:
    """What a kind of model has besides its weights.

    Attributes:
        wrapper: name in `WRAPPERS`.
        specials: special tokens in the order of their ids, which follow those of the toy tokenizer.
        image_token: the one of these that an image's embeddings replace.
        image: what the template writes for an image.
        image_processor: transformers' class of the image processor, without the backend's suffix.
        processor: preprocessor_config.json.
        config: values of config.json.
        processor_config: values of processor_config.json.
        tokenizer_config: further values of tokenizer_config.json.
        ids: keys of config.json that name a special token's id.
        video: what the template writes for a video; empty: the model reads none.
    """

    wrapper: str
    specials: tuple[str, ...]
    image_token: str
    image: str
    image_processor: str
    processor: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    processor_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    video: str = ""


def _tiles(name: str, processor: str) -> VisionKind:
    """Return a kind that splits an image into tiles of 28 x 28 pixels, up to 2 x 2 of them, and adds the whole image."""
    rows = tuple(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4))
    return VisionKind(
        name,
        ("<fake_token_around_image>", "<global-img>", "<image>", "<end_of_utterance>", *rows),
        "<image>",
        "<image>",
        f"{processor}ImageProcessor",
        _HALF | {"do_image_splitting": True, "size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}},
        {"scale_factor": 2},
        {"processor_class": f"{processor}Processor", "image_seq_len": 4},
        video="<video>" if processor == "SmolVLM" else "",
    )


_QWEN_SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_IDS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "video_token_id": "<|video_pad|>",
}


def _qwen(name: str, processor: str, patch: int, values: Mapping[str, Any] = _CLIP) -> VisionKind:
    """Return a kind whose images keep their shape: an embedding for 2 x 2 patches, up to 16 embeddings an image."""
    side = 2 * patch
    sizes = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": 2}
    return VisionKind(
        name,
        _QWEN_SPECIALS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        "Qwen2VLImageProcessor",
        values | sizes | {"size": {"shortest_edge": side * side, "longest_edge": 16 * side * side}},
        processor_config={"processor_class": processor},
        ids=_QWEN_IDS,
        video="<|vision_start|><|video_pad|><|vision_end|>",
    )


_GLM_IDS = {
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_token_id": "<|video|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}


def _glm(name: str, processor: str) -> VisionKind:
    sizes = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
    return VisionKind(
        name,
        ("<|image|>", *_GLM_IDS.values()),
        "<|image|>",
        "<|begin_of_image|><|image|><|end_of_image|>",
        f"{processor}ImageProcessor",
        # The pixels of a grid are counted for both frames of an image.
        _CLIP | sizes | {"size": {"shortest_edge": 2 * 28 * 28, "longest_edge": 2 * 16 * 28 * 28}},
        processor_config={"processor_class": f"{processor}Processor"},
        ids=_GLM_IDS,
        video="<|begin_of_video|><|video|><|end_of_video|>",
    )


def _pixtral(name: str, merge: int, config: Mapping[str, Any]) -> VisionKind:
    """Return a kind with a Pixtral tower: patches of 14 x 14 pixels, a token behind every row of them."""
    return VisionKind(
        name,
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        "[IMG]",
        "[IMG]",
        "PixtralImageProcessor",
        _CLIP | {"size": {"longest_edge": 84}, "patch_size": {"height": 14, "width": 14}},
        config,
        {"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": merge},
    )


def _internvl(name: str) -> VisionKind:
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    names |= {"video_token": "<video>"}
    return VisionKind(
        name,
        tuple(names.values()),
        "<IMG_CONTEXT>",
        "<IMG_CONTEXT>",
        "GotOcr2ImageProcessor",
        _IMAGENET | {"size": {"height": 28, "width": 28}, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        {"image_seq_length": 4, "downsample_ratio": 0.5},
        {"processor_class": "InternVLProcessor", "image_seq_length": 4},
        {"extra_special_tokens": names},
        video="<video>",
    )


_PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28]]
_SOFT = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}

KINDS: Mapping[str, VisionKind] = {
    "llama4": VisionKind(
        "llama4",
        ("<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
        "<|patch|>",
        "<|image|>",
        "Llama4ImageProcessor",
        _HALF | {"size": {"height": 28, "width": 28}, "max_patches": 4},
        processor_config={"processor_class": "Llama4Processor", "patch_size": 7, "pixel_shuffle_ratio": 0.5},
    ),
    "llava": VisionKind(
        "llava",
        ("<image>",),
        "<image>",
        "<image>",
        "CLIPImageProcessor",
        _CLIP | {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
        {"vision_feature_layer": -2},
        {"processor_class": "LlavaProcessor", "patch_size": 14, "vision_feature_select_strategy": "default"}
        | {"num_additional_image_tokens": 1, "image_token": "<image>"},
    ),
    "llava of pixtral": _pixtral("llava of pixtral", 1, {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}),
    "llava_next": VisionKind(
        "llava_next",
        ("<image>",),
        "<image>",
        "<image>",
        "LlavaNextImageProcessor",
        _CLIP | {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "image_grid_pinpoints": _PINPOINTS},
        {"vision_feature_layer": -2, "image_grid_pinpoints": _PINPOINTS},
        {"processor_class": "LlavaNextProcessor", "patch_size": 14, "vision_feature_select_strategy": "default"}
        | {"num_additional_image_tokens": 1, "image_token": "<image>"},
    ),
    "llava_onevision": VisionKind(
        "llava_onevision",
        ("<image>", "<video>"),
        "<image>",
        "<image>",
        "LlavaOnevisionImageProcessor",
        _HALF | {"size": {"height": 28, "width": 28}, "image_grid_pinpoints": _PINPOINTS},
        {"vision_feature_layer": -1, "image_grid_pinpoints": _PINPOINTS, "vision_aspect_ratio": "anyres_max_2"},
        {"processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 4, "vision_feature_select_strategy": "full"}
        | {"vision_aspect_ratio": "anyres_max_2", "image_token": "<image>"},
        ids={"video_token_id": "<video>"},
        video="<video>",
    ),
    "smolvlm": _tiles("smolvlm", "SmolVLM"),
    "idefics3": _tiles("idefics3", "Idefics3"),
    "qwen2_vl": _qwen("qwen2_vl", "Qwen2VLProcessor", 14),
    "qwen2_5_vl": _qwen("qwen2_5_vl", "Qwen2_5_VLProcessor", 14),
    "qwen3_vl": _qwen("qwen3_vl", "Qwen3VLProcessor", 16, _HALF),
    "qwen3_vl_moe": _qwen("qwen3_vl_moe", "Qwen3VLProcessor", 16, _HALF),
    "qwen3_5": _qwen("qwen3_5", "Qwen3VLProcessor", 16, _HALF),
    "qwen3_5_moe": _qwen("qwen3_5_moe", "Qwen3VLProcessor", 16, _HALF),
    "internvl": _internvl("internvl"),
    "internvl of qwen3": _internvl("internvl of qwen3"),
    "mistral3": _pixtral("mistral3", 2, {"vision_feature_layer": -1}),
    "mistral3 of ministral3": _pixtral("mistral3 of ministral3", 2, {"vision_feature_layer": -1}),
    "glm4v": _glm("glm4v", "Glm4v"),
    "glm4v_moe": _glm("glm4v_moe", "Glm4v"),
    "glm46v": _glm("glm46v", "Glm46V"),
    "gemma3": VisionKind(
        "gemma3",
        tuple(_SOFT.values()),
        "<image_soft_token>",
        "<start_of_image>",
        "Gemma3ImageProcessor",
        _HALF | {"size": {"height": 28, "width": 28}},
        {"mm_tokens_per_image": 4},
        {"processor_class": "Gemma3Processor", "image_seq_length": 4},
        {"extra_special_tokens": _SOFT},
        {"boi_token_id": "<start_of_image>", "eoi_token_id": "<end_of_image>"},
    ),
}
"""Name -> kind, of every family whose images are read."""
