"""GGUF weights: llama.cpp's file format, dequantized to float32 tensor by tensor from the mapped file.

llama.cpp stores q and k of the llama architecture with the halves of each head interleaved; that is undone here, so that
every source hands out the same order.
"""

from pathlib import Path

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.models.config import read_config
from tetrad.worker_svc.weights.gguf_metadata import gguf_name
from tetrad.worker_svc.weights.gguf_reader import GgufFile


class GgufSource:
    """A WeightSource over one .gguf file."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        self.config = self._file.config
        self.total_bytes = self._file.total_bytes
        self._head_dim = read_config(self.config).head_dim

    def has(self, name: str) -> bool:
        """Return whether the file has this tensor."""
        return self._file.has(gguf_name(name))

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32, rows as Hugging Face orders them, and its bytes as stored."""
        values, stored_bytes = self._file.dequantize(gguf_name(name))
        # The file is mapped read-only, and a float32 tensor comes back as that very map: always a copy of our own.
        tensor = torch.tensor(values, dtype=torch.float32)
        if self._file.architecture == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            tensor = _split_halves(name, tensor, self._head_dim)
        return tensor, stored_bytes


def _split_halves(name: str, weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Turn interleaved pairs of rows back into halves: the inverse of layers.rotary.interleave_heads."""
    if head_dim % 2 or not weight.dim() or weight.shape[0] % head_dim:
        raise ModelError(f"Tensor {name} has shape {tuple(weight.shape)}, which heads of {head_dim} do not divide into pairs.")
    pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
