"""A tiny gpt-oss in the files' form of the published ones: the experts' matrices in MXFP4, everything else in floats."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.worker_svc.families.tiny_models import save_family


def save_published(directory: Path, **overrides: object) -> PreTrainedModel:
    """Write the model, and return transformers' model of the weights that its files hold; `overrides`: see save_family."""
    reference = save_family(directory, "gpt_oss", **overrides)
    tensors, floats = load_file(directory / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        random = np.random.default_rng(list(name.encode()))
        blocks = torch.from_numpy(random.integers(0, 256, (experts, rows, columns // 32, 16), dtype=np.uint8))
        scales = torch.from_numpy(random.integers(120, 125, (experts, rows, columns // 32), dtype=np.uint8))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        floats[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    reference.load_state_dict(floats, strict=False)
    write(directory, tensors)
    return reference


def write(directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Write the tensors into a directory with a config, and the quantization into the config."""
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory
