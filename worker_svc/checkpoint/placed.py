"""Placed weights: loads float tensors to the device and in the type that a program computes with."""

from typing import Protocol

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader


class FloatWeights(Protocol):
    """The tensors of a model's files, in floats."""

    @property
    def device(self) -> torch.device:
        """The device of tensors that `get` returns."""

    def has(self, name: str) -> bool:
        """See WeightLoader."""

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor on the device; raise ModelError if it is missing, broken or of another shape."""

    def get_stored(self, name: str, *shapes: tuple[int, ...], num_parameters: int | None = None) -> torch.Tensor:
        """Return a tensor in host memory, in its stored type; see WeightLoader."""


class PlacedWeights:
    """The FloatWeights of a weight loader; see FloatWeights.

    Args:
        weights: the weight loader.
        device: target device of tensors.
        dtype: type of tensors on the device.
    """

    def __init__(self, weights: WeightLoader, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._weights, self._dtype, self.device = weights, dtype, device

    def has(self, name: str) -> bool:
        """See WeightLoader."""
        return self._weights.has(name)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See FloatWeights."""
        return self._weights.get(name, shape).to(self.device, self._dtype)

    def get_stored(self, name: str, *shapes: tuple[int, ...], num_parameters: int | None = None) -> torch.Tensor:
        """See FloatWeights."""
        return self._weights.get_stored(name, *shapes, num_parameters=num_parameters)
