"""Checkpoints with other weights of a tiny model, as an update names them, and whole directories of models with them."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_STD = 0.2


def save_weights(own: Path, directory: Path, seed: int) -> Path:
    """Write random weights of a model's shapes, without any other file; return the directory."""
    directory.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(own / "model.safetensors")
    changed = {
        name: torch.randn(tensor.shape, generator=generator) * _STD if tensor.dim() > 1 else tensor
        for name, tensor in tensors.items()
    }
    save_file(changed, directory / "model.safetensors")
    return directory


def whole_model(own: Path, weights: Path, directory: Path) -> Path:
    """Write a model with these weights and the other files of `own`; return the directory."""
    shutil.copytree(own, directory)
    shutil.copy(weights / "model.safetensors", directory)
    return directory
