"""Int8: stores weights in 8 bits, with a scale for each row or for each group of a row's columns; activations stay floats."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from tetrad.worker_svc.kernels.byte_matmul import byte_matmul
from tetrad.worker_svc.kernels.expert_weights import ExpertWeights
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.quantization.context import ProductContext
from tetrad.worker_svc.quantization.matrix import ALL, Matrix

_LARGEST = 127


@dataclass(frozen=True, slots=True)
class Int8Form:
    """The form of a Matrix with two tensors: quanta [R, C] int8, and scales [R, C / group].

    Attributes:
        context: the product context.
        group: number of columns that share a scale; C: the whole row.
    """

    context: ProductContext
    group: int

    def linear(self, tensors: Sequence[torch.Tensor], bias: torch.Tensor | None) -> Linear:
        """See Form."""
        quanta, scales = tensors
        return Int8Linear(self, quanta, scales, bias)


class Int8Linear:
    """A Linear with int8 weights.

    Args:
        form: the form of the tensors.
        quanta: [N, K] int8.
        scales: [K / group, N].
        bias: [N] or None.
    """

    def __init__(self, form: Int8Form, quanta: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._context, self._group = form.context, form.group
        self._quanta, self._scales, self._bias = quanta, scales, bias
        self._kernel = "int8" if form.group == quanta.shape[1] else f"int8/{form.group}"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, N] of x [T, K], in x's type."""
        shape = self._context.shapes.of(self._kernel, len(x), *self._quanta.shape)
        if shape is None:
            return F.linear(x, self._widened(x.dtype), self._bias)
        tickets = self._context.tickets
        return byte_matmul(
            x, self._quanta, self._scales, self._bias, dtype=x.dtype, group=self._group, shape=shape, tickets=tickets
        )

    def weights(self) -> ExpertWeights:
        """See Stackable."""
        return ExpertWeights(self._quanta, self._bias, self._scales, group=self._group)

    def _widened(self, dtype: torch.dtype) -> torch.Tensor:
        groups = self._quanta.reshape(len(self._quanta), len(self._scales), -1)
        return (groups * self._scales.T[:, :, None].to(dtype)).flatten(1)


def quantize_int8(context: ProductContext, weight: torch.Tensor, own: slice = ALL) -> Matrix:
    """Quantize a weight [R, C] to 8 bits, and return the columns `own` of it.

    A row's largest value is 127 times its scale. Non-finite rows stay non-finite.
    """
    wide = weight.float()
    scales = wide.abs().amax(1, keepdim=True).clamp_min(1e-12) / _LARGEST
    quanta = (wide[:, own] / scales).round().to(torch.int8)
    return Matrix(Int8Form(context, quanta.shape[1]), (quanta, scales))
