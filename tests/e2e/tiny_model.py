"""A model that a CPU runs in a millisecond a step: random weights and a byte-level tokenizer, as a directory."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.toy_tokenizer import EOS_IDS, SPECIALS, toy_tokenizer
from tetrad.worker_svc.families.registry import read_config
from tetrad.worker_svc.model_facts.tensors import tensor_shapes

VOCAB_SIZE = 272  # a few more than the tokenizer has, as real models have
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": list(EOS_IDS),
}
_WEIGHTS_STD = 0.2
"""Logits then differ by several units, as a trained model's do."""


def save_tiny_model(directory: Path, **changes: object) -> Path:
    """Write the model, its config changed; return its directory."""
    config = _CONFIG | changes
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * _WEIGHTS_STD
        for name, shape in tensor_shapes(read_config(config)).items()
    }
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    save_tokenizer(directory)
    return directory


def save_tokenizer(directory: Path) -> None:
    """Write the tokenizer of a model with a vocabulary of `VOCAB_SIZE`."""
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": list(EOS_IDS)}))
    (directory / "tokenizer.json").write_text(toy_tokenizer())
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0]})
    )
