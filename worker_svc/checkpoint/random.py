"""Random weights (load_format "dummy"): weights of a model's shapes without its files.

The same seed and kind of device give the same weights.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import torch

from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensors import tensor_shapes

_HOST = torch.device("cpu")


class RandomSource:
    """A WeightSource of random tensors: norms are ones, all other tensors are drawn from N(0, 0.02).

    Args:
        config: the model's values in the form of config.json.
        facts: the description read from these values.
        seed: together with a tensor's name, the seed of the tensor.
        device: device that draws and holds the tensors; a GPU draws a billion numbers while a host draws a million.
    """

    _STD = 0.02

    def __init__(self, config: Mapping[str, Any], facts: ModelConfig, seed: int, device: torch.device = _HOST) -> None:
        self.config = config
        self.stored_type = "float32"
        self._seed, self._device = seed, device
        self._shapes = tensor_shapes(facts)
        self.total_bytes = sum(4 * torch.Size(shape).numel() for shape in self._shapes.values())

    def has(self, name: str) -> bool:
        """Return whether a model of this description has the tensor."""
        return name in self._shapes

    def unread(self) -> list[str]:
        """Return no names: tensors are created when they are loaded."""
        return []

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor and its size in bytes."""
        shape = self._shapes[name]
        if len(shape) == 1 and name.endswith(".weight"):
            tensor = torch.ones(shape, device=self._device)
        else:
            # torch's generator uses 32 bits of a seed, so these bits are a hash of seed and name.
            generator = torch.Generator(self._device).manual_seed(zlib.crc32(f"{self._seed}:{name}".encode()))
            tensor = torch.randn(shape, generator=generator, device=self._device).mul_(self._STD)
        return tensor, 4 * tensor.numel()

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in float32, the type of all random tensors."""
        return self.load(name)[0]

    def load_quantized(self, name: str) -> None:
        """Return None: random tensors are never quantized."""
