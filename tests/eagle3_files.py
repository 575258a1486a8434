"""An EAGLE-3 head with random weights, as published ones are written."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

_CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "draft_vocab_size": 200,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}


def save_eagle3(directory: Path, *, vocab_size: int = 320, **changes: object) -> Path:
    """Write a head of a model with hidden states of 64, its config changed; return its directory."""
    config = _CONFIG | {"vocab_size": vocab_size}
    hidden, width, drafts = 64, 80, 200
    generator = torch.Generator().manual_seed(3)
    shapes = {"fc": (hidden, 3 * hidden), "lm_head": (drafts, hidden)}
    shapes |= {f"midlayer.self_attn.{name}_proj": (rows, 2 * hidden) for name, rows in (("q", 64), ("k", 32), ("v", 32))}
    shapes |= {"midlayer.self_attn.o_proj": (hidden, 64), "midlayer.mlp.down_proj": (hidden, width)}
    shapes |= {f"midlayer.mlp.{name}_proj": (width, hidden) for name in ("gate", "up")}
    norms = ("norm", *(f"midlayer.{name}" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")))
    weights = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}
    weights |= {f"{name}.weight": 1 + 0.2 * torch.randn(hidden, generator=generator) for name in norms}
    chosen = torch.randperm(vocab_size, generator=generator)[:drafts].sort().values
    weights["d2t"] = chosen - torch.arange(drafts)
    weights["t2d"] = torch.isin(torch.arange(vocab_size), chosen)
    directory.mkdir(exist_ok=True)
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config | changes))
    return directory
