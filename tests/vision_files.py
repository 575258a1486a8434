"""A tiny model that reads images, as a directory: random weights, a byte-level tokenizer, an image processor and a template."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tests.toy_tokenizer import EOS_IDS, SPECIALS, toy_tokenizer
from tests.vision_kinds import KINDS
from tests.worker_svc.families.tiny_wrappers import save_wrapper


def save_vision_model(directory: Path, kind: str) -> torch.nn.Module:
    """Write a model of one of `KINDS`, with tokenizer, image processor and chat template; return transformers' own model."""
    its = KINDS[kind]
    tokenizer = Tokenizer.from_str(toy_tokenizer())
    tokenizer.add_special_tokens(list(its.specials))
    ids = {name: tokenizer.token_to_id(token) for name, token in its.ids.items()}
    ids["image_token_id"] = tokenizer.token_to_id(its.image_token)
    model = save_wrapper(directory, its.wrapper, **ids, **its.config)
    texts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIALS[0],
        "chat_template": _template(its.image, its.video),
    }
    files = {
        "generation_config.json": {"eos_token_id": list(EOS_IDS)},
        "tokenizer_config.json": texts | dict(its.tokenizer_config),
        "preprocessor_config.json": {"image_processor_type": its.image_processor, **its.processor},
        "processor_config.json": dict(its.processor_config),
    }
    (directory / "tokenizer.json").write_text(tokenizer.to_str())
    for name, values in files.items():
        (directory / name).write_text(json.dumps(values))
    return model


def _template(image: str, video: str) -> str:
    """Return a chat template that writes text, images and videos of a message in their order."""
    part = "{% if part.type == 'image' %}" + image + "{% elif part.type == 'video' %}" + video
    part += "{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    parts = "{% for part in message.content %}" + part + "{% endfor %}"
    content = "{% if message.content is string %}{{ message.content }}{% else %}" + parts + "{% endif %}"
    turns = "{% for message in messages %}{{ message.role }}: " + content + "\n{% endfor %}"
    return turns + "{% if add_generation_prompt %}assistant: {% endif %}"
