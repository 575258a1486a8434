"""Plain weights: stores floats in the type of the activations, which cuBLAS multiplies."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.layers.linear import Linear, PlainLinear
from tetrad.worker_svc.quantization.context import ProductContext
from tetrad.worker_svc.quantization.matrix import Matrix


@dataclass(frozen=True, slots=True)
class PlainForm:
    """The form of a Matrix with one tensor: the weight [R, C]."""

    def linear(self, tensors: Sequence[torch.Tensor], bias: torch.Tensor | None) -> Linear:
        """See Form."""
        [weight] = tensors
        return PlainLinear(weight, bias)


@dataclass(frozen=True, slots=True)
class PlainScheme:
    """The Scheme of weights that are stored as floats. The loader dequantizes the weights of a GGUF file."""

    context: ProductContext

    def read(self, weights: WeightLoader, name: str, rows: int, columns: int) -> Matrix:
        """See Scheme."""
        weight = weights.get_stored(f"{name}.weight", (rows, columns))
        return Matrix(PlainForm(), (weight.to(self.context.device).to(self.context.dtype),))
