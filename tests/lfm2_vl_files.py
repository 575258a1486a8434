"""A tiny LFM2-VL as a directory: its image processor needs torchvision in transformers, so it is in no table of kinds."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tests.toy_tokenizer import EOS_IDS, SPECIALS, toy_tokenizer
from tests.worker_svc.families.tiny_wrappers import save_wrapper

ROWS = tuple(f"<|img_row_{row}_col_{col}|>" for row in range(1, 4) for col in range(1, 4))
TOKENS = ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *ROWS)
SETTINGS: dict[str, Any] = {
    "encoder_patch_size": 14,
    "tile_size": 28,
    "min_tiles": 2,
    "max_tiles": 4,
    "min_image_tokens": 1,
    "max_image_tokens": 4,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_lfm2_vl(directory: Path) -> torch.nn.Module:
    """Write the model with tokenizer, settings and template; return transformers' own model."""
    tokenizer = Tokenizer.from_str(toy_tokenizer())
    tokenizer.add_special_tokens(list(TOKENS))
    image_token_id = tokenizer.token_to_id("<image>")
    model = save_wrapper(directory, "lfm2_vl", image_token_id=image_token_id, downsample_factor=2)
    texts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0], "chat_template": TEMPLATE}
    files = {
        "generation_config.json": {"eos_token_id": list(EOS_IDS)},
        "tokenizer_config.json": texts,
        "preprocessor_config.json": {"image_processor_type": "Lfm2VlImageProcessorFast", **SETTINGS},
        "processor_config.json": {"processor_class": "Lfm2VlProcessor"},
    }
    (directory / "tokenizer.json").write_text(tokenizer.to_str())
    for name, values in files.items():
        (directory / name).write_text(json.dumps(values))
    return model
