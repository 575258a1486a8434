"""Parameters: return a model's weights as layers of its device.

A model names layers by canonical names (model_facts/tensor_names.py) and does not depend on the storage of weights.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.layers.linear import Linear, LinearFactory
from tetrad.worker_svc.layers.rotary import interleave_heads

CHOOSING = (".router", ".shared_expert_gate")
"""Ends of the names of matrices that choose experts, or how much of one a token takes."""
Lookup = Callable[[torch.Tensor], torch.Tensor]
"""Function (token ids [T]) -> their rows [T, columns]; the caller may change the rows."""


class Parameters(Protocol):
    """The weights of a model."""

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor with this full name."""

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        in_features: int,
        *,
        rotated: Sequence[bool] | None = None,
        head_dim: int = 0,
        rotary_dim: int | None = None,
    ) -> Linear:
        """Return the product of several weights that read the same input; their outputs are concatenated.

        Args:
            names: prefixes (without ".weight") and numbers of outputs; biases are used if they exist.
            in_features: number of columns of each weight.
            rotated: whether each part is queries or keys, whose rows are interleaved (layers/rotary.py); None: no part is.
            head_dim: size of a head of queries and keys.
            rotary_dim: number of rows of a head that are interleaved; None: all.
        """

    def scalar(self, name: str) -> float:
        """Return a tensor of one value above 0, by its full name; raise ModelError for another shape or value."""

    def vector(self, name: str, size: int) -> torch.Tensor:
        """Return a tensor [size], such as the weight of a norm, by its full name."""

    def constants(self, values: Sequence[float]) -> torch.Tensor:
        """Return numbers that are in no file, as a tensor [N] float32 beside the weights."""

    def embedding(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """Return a table [rows, columns], never quantized, by its full name."""

    def lookup(self, name: str, table: torch.Tensor) -> Lookup:
        """Return the lookup of rows in a table of token embeddings; `name` is the table's name without ".weight"."""

    def output(self, name: str, table: torch.Tensor | None, rows: int, columns: int) -> Linear:
        """Return the product with float32 outputs with `table`, or, if it is None, with the matrix of the prefix `name`."""


class HostParameters:
    """Weights in float32 in host memory.

    Args:
        weights: loads the model's tensors.
        make_linear: packs the matrices.

    Attributes:
        saved_bytes: number of bytes that the matrices take less than in float32.
    """

    def __init__(self, weights: WeightLoader, make_linear: LinearFactory) -> None:
        self._weights, self._make_linear = weights, make_linear
        self.saved_bytes = 0

    def has(self, name: str) -> bool:
        """See Parameters."""
        return self._weights.has(name)

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        in_features: int,
        *,
        rotated: Sequence[bool] | None = None,
        head_dim: int = 0,
        rotary_dim: int | None = None,
    ) -> Linear:
        """See Parameters."""
        weights, biases = [], []
        for index, (name, size) in enumerate(names):
            weight, bias = self._weights.get(f"{name}.weight", (size, in_features)), self._bias(name, size)
            if rotated and rotated[index]:
                weight = interleave_heads(weight, head_dim, rotary_dim)
                bias = None if bias is None else interleave_heads(bias, head_dim, rotary_dim)
            weights.append(weight)
            biases.append(bias)
        if all(bias is None for bias in biases):
            return self._make_linear(torch.cat(weights), None)
        filled = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
        return self._make_linear(torch.cat(weights), torch.cat(filled))

    def scalar(self, name: str) -> float:
        """See Parameters."""
        return self._weights.get_scalar(name)

    def vector(self, name: str, size: int) -> torch.Tensor:
        """See Parameters."""
        return self._weights.get(name, (size,))

    def constants(self, values: Sequence[float]) -> torch.Tensor:
        """See Parameters."""
        return torch.tensor(values)

    def embedding(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See Parameters."""
        return self._weights.get(name, (rows, columns))

    def lookup(self, name: str, table: torch.Tensor) -> Lookup:  # noqa: ARG002 - one signature
        """See Parameters."""
        return table.__getitem__

    def output(self, name: str, table: torch.Tensor | None, rows: int, columns: int) -> Linear:
        """See Parameters."""
        return self.linear([(name, rows)], columns) if table is None else self._make_linear(table, self._bias(name, rows))

    def _bias(self, name: str, size: int) -> torch.Tensor | None:
        return self._weights.get(f"{name}.bias", (size,)) if self._weights.has(f"{name}.bias") else None
