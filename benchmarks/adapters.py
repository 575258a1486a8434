"""Adapters for benchmarks: random LoRA adapters of SmolLM2-135M in PEFT's format, of rank 16 on all linear layers."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 16
_LAYERS = 30
_HIDDEN, _KEYS, _MLP = 576, 192, 1536
_SHAPES = {
    "self_attn.q_proj": (_HIDDEN, _HIDDEN),
    "self_attn.k_proj": (_HIDDEN, _KEYS),
    "self_attn.v_proj": (_HIDDEN, _KEYS),
    "self_attn.o_proj": (_HIDDEN, _HIDDEN),
    "mlp.gate_proj": (_HIDDEN, _MLP),
    "mlp.up_proj": (_HIDDEN, _MLP),
    "mlp.down_proj": (_MLP, _HIDDEN),
}
"""Numbers of inputs and outputs of SmolLM2's linear layers."""


def save_adapter(directory: Path, number: int) -> Path:
    """Write an adapter in bfloat16 (10 MB) with random values from this seed, and return its directory."""
    path = directory / f"adapter-{number}"
    path.mkdir()
    generator = torch.Generator().manual_seed(number)
    tensors = {}
    for layer in range(_LAYERS):
        for name, (inputs, outputs) in _SHAPES.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(RANK, inputs, generator=generator) * 0.01
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs, RANK, generator=generator) * 0.01
    modules = [name.rpartition(".")[2] for name in _SHAPES]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, path / "adapter_model.safetensors")
    return path
