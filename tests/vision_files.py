"""A tiny model that reads images, as a directory: random weights, a byte-level tokenizer, an image processor and a template."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tests.toy_tokenizer import EOS_IDS, SPECIALS, toy_tokenizer
from tests.worker_svc.families.tiny_wrappers import save_wrapper

_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


@dataclass(frozen=True)
class VisionKind:
    """What a kind of model has besides its weights.

    Attributes:
        wrapper: name in `WRAPPERS`.
        specials: special tokens in the order of their ids, which follow those of the toy tokenizer.
        image_token: the one of these that an image's embeddings replace.
        image: what the template writes for an image.
        processor: preprocessor_config.json.
        config: values of config.json.
        processor_config: values of processor_config.json.
    """

    wrapper: str
    specials: tuple[str, ...]
    image_token: str
    image: str
    processor: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    processor_config: Mapping[str, Any] = field(default_factory=dict)


KINDS: Mapping[str, VisionKind] = {
    "llava": VisionKind(
        "llava",
        ("<image>",),
        "<image>",
        "<image>",
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
        | _CLIP,
        {"vision_feature_layer": -1},
        {"processor_class": "LlavaProcessor", "patch_size": 14, "vision_feature_select_strategy": "default"}
        | {"num_additional_image_tokens": 1, "image_token": "<image>"},
    ),
    "smolvlm": VisionKind(
        "smolvlm",
        ("<fake_token_around_image>", "<global-img>", "<image>", *(f"<row_{r}_col_{c}>" for r in (1, 2, 3) for c in (1, 2, 3))),
        "<image>",
        "<image>",
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "do_image_splitting": True,
            "size": {"longest_edge": 56},
            "max_image_size": {"longest_edge": 28},
        }
        | _HALF,
        {"scale_factor": 2},
        {"processor_class": "SmolVLMProcessor", "image_seq_len": 1},
    ),
    "qwen2_5_vl": VisionKind(
        "qwen2_5_vl",
        ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "min_pixels": 28 * 28,
            "max_pixels": 16 * 28 * 28,
        }
        | _CLIP,
        {},
        {"processor_class": "Qwen2_5_VLProcessor"},
    ),
}


def save_vision_model(directory: Path, kind: str) -> torch.nn.Module:
    """Write a model of one of `KINDS`, with tokenizer, image processor and chat template; return transformers' own model."""
    its = KINDS[kind]
    tokenizer = Tokenizer.from_str(toy_tokenizer())
    tokenizer.add_special_tokens(list(its.specials))
    ids = {f"{_CONFIG_NAMES[token]}_token_id": tokenizer.token_to_id(token) for token in its.specials if token in _CONFIG_NAMES}
    if its.image_token not in _CONFIG_NAMES:
        ids["image_token_id"] = tokenizer.token_to_id(its.image_token)
    model = save_wrapper(directory, its.wrapper, **ids, **its.config)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": list(EOS_IDS)}))
    (directory / "tokenizer.json").write_text(tokenizer.to_str())
    texts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0], "chat_template": _template(its.image)}
    (directory / "tokenizer_config.json").write_text(json.dumps(texts))
    (directory / "preprocessor_config.json").write_text(json.dumps(dict(its.processor)))
    (directory / "processor_config.json").write_text(json.dumps(dict(its.processor_config)))
    return model


_CONFIG_NAMES = {
    "<|vision_start|>": "vision_start",
    "<|vision_end|>": "vision_end",
    "<|image_pad|>": "image",
    "<|video_pad|>": "video",
}


def _template(image: str) -> str:
    """Return a chat template that writes text and images of a message in their order."""
    part = "{% if part.type == 'image' %}" + image + "{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    parts = "{% for part in message.content %}" + part + "{% endfor %}"
    content = "{% if message.content is string %}{{ message.content }}{% else %}" + parts + "{% endif %}"
    turns = "{% for message in messages %}{{ message.role }}: " + content + "\n{% endfor %}"
    return turns + "{% if add_generation_prompt %}assistant: {% endif %}"
