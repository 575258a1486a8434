"""The directory of a model for a stack: config, and a tokenizer of numbered words; weights are random (load_format dummy)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_model(directory: Path, config: Mapping[str, Any]) -> None:
    """Write config.json and a tokenizer with the config's vocabulary size."""
    (directory / "config.json").write_text(json.dumps(dict(config)))
    (directory / "tokenizer.json").write_text(json.dumps(_tokenizer(config["vocab_size"])))
    eos = _word(config["eos_token_id"])
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "unk_token": _word(0)})
    )


def _tokenizer(vocab_size: int) -> dict[str, object]:
    """Return a tokenizer of the `tokenizers` library's format, whose tokens are the words w0, w1, ... between spaces."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {_word(index): index for index in range(vocab_size)}, "unk_token": _word(0)},
    }


def _word(index: int) -> str:
    return f"w{index}"
