"""NativeParameters: loads the weights of a model for a native program, and counts the bytes of its matrices."""

from collections.abc import Sequence
from typing import Protocol

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.native.weights import NativeMatrix


class MatrixLoader(Protocol):
    """Reads and packs matrices from a model's files."""

    def load(self, names: Sequence[tuple[str, int]], columns: int, *, paired: bool = False) -> list[NativeMatrix]:
        """Return matrices [rows, columns] that read the same input: one fused matrix, or several if their formats differ."""

    def load_plain(self, name: str, rows: int, columns: int) -> NativeMatrix:
        """Return a matrix that is never quantized; its products take activations in float32."""


class NativeParameters:
    """Reads weights by canonical names (model_facts/tensor_names.py).

    Args:
        weights: loads norms, biases and tables.
        matrices: loads matrices.

    Attributes:
        size_bytes: size of the matrices read so far.
    """

    def __init__(self, weights: WeightLoader, matrices: MatrixLoader) -> None:
        self._weights, self._matrices = weights, matrices
        self.size_bytes = 0

    def has(self, name: str) -> bool:
        """Return whether there is a tensor with this full name."""
        return self._weights.has(name)

    def vector(self, name: str, size: int) -> torch.Tensor:
        """Return a tensor [size] in float32, by its full name."""
        return self._weights.get(name, (size,))

    def table(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """Return a tensor [rows, columns] in float32, by its full name."""
        return self._weights.get(name, (rows, columns))

    def products(self, *names: tuple[str, int], columns: int) -> list[NativeMatrix]:
        """Return several weights [rows, columns] that read the same input, by their prefixes; see MatrixLoader.load."""
        return self._counted(self._matrices.load(_weights_of(names), columns))

    def product(self, name: str, rows: int, columns: int) -> NativeMatrix:
        """Return one matrix [rows, columns], by its prefix."""
        return self.products((name, rows), columns=columns)[0]

    def pair(self, first: str, second: str, rows: int, columns: int) -> NativeMatrix:
        """Return a paired matrix of two matrices [rows, columns], by their prefixes: a gate and the values it multiplies."""
        return self._counted(self._matrices.load(_weights_of(((first, rows), (second, rows))), columns, paired=True))[0]

    def plain(self, name: str, rows: int, columns: int) -> NativeMatrix:
        """Return one matrix [rows, columns] that is never quantized, by its prefix."""
        return self._counted([self._matrices.load_plain(f"{name}.weight", rows, columns)])[0]

    def bias(self, *names: tuple[str, int]) -> torch.Tensor | None:
        """Return the concatenated biases of fused products, with zeros for missing ones; None if all are missing."""
        if not any(self.has(f"{name}.bias") for name, _ in names):
            return None
        return torch.cat([self._bias(f"{name}.bias", size) for name, size in names])

    def _bias(self, name: str, size: int) -> torch.Tensor:
        return self.vector(name, size) if self.has(name) else torch.zeros(size)

    def _counted(self, matrices: list[NativeMatrix]) -> list[NativeMatrix]:
        self.size_bytes += sum(matrix.size_bytes for matrix in matrices)
        return matrices


def _weights_of(names: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(f"{name}.weight", rows) for name, rows in names]
