"""Int4: stores weights in 4 bits, in groups of columns with a scale and a zero, or with a table; activations stay floats."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from tetrad.worker_svc.checkpoint.packed_weights.grouped import of_columns
from tetrad.worker_svc.kernels.expert_weights import ExpertWeights
from tetrad.worker_svc.kernels.int4_matmul import BLOCK, int4_matmul, pack_int4, unpack_int4
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.quantization.context import ProductContext
from tetrad.worker_svc.quantization.matrix import ALL, Matrix

_LARGEST = 15


@dataclass(frozen=True, slots=True)
class Int4Form:
    """The form of a Matrix with tensors quanta [R, C / 2] uint8 (see kernels.int4_matmul), scales and zeros [R, C / group].

    Attributes:
        context: the product context.
        group: number of columns that share a scale and a zero: a multiple of 32, or 16.
        table: the 16 values of quanta; the matrix has no zeros then; None: quanta are integers.
    """

    context: ProductContext
    group: int
    table: tuple[float, ...] | None = None

    def linear(self, tensors: Sequence[torch.Tensor], bias: torch.Tensor | None) -> Linear:
        """See Form."""
        packed, scales, *zeros = tensors
        return Int4Linear(self, packed, scales, zeros[0] if zeros else None, bias)


class Int4Linear:
    """A Linear with weights of 4 bits.

    Args:
        form: the form of the tensors.
        packed: [N, K / 2] uint8.
        scales: [K / group, N].
        zeros: [K / group, N] uint8; None: the form has a table.
        bias: [N] or None.
    """

    def __init__(
        self, form: Int4Form, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bias: torch.Tensor | None
    ) -> None:
        self._context, self._group = form.context, form.group
        self._table = None
        if form.table is not None:
            self._table = torch.tensor(form.table, dtype=form.context.dtype, device=form.context.device)
        self._packed, self._scales, self._zeros, self._bias = packed, scales, zeros, bias
        self._kernel = f"int4/{form.group}"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, N] of x [T, K], in x's type."""
        shape = self._context.shapes.of(self._kernel, len(x), len(self._packed), x.shape[1])
        if shape is None:
            return F.linear(x, self._widened(x.dtype), self._bias)
        tickets = self._context.tickets
        return int4_matmul(
            x, self._packed, self._scales, self._zeros, self._bias, table=self._table, shape=shape, tickets=tickets
        )

    def weights(self) -> ExpertWeights:
        """See Stackable."""
        return ExpertWeights(self._packed, self._bias, self._scales, self._zeros, self._table, self._group)

    def _widened(self, dtype: torch.dtype) -> torch.Tensor:
        quanta = unpack_int4(self._packed).reshape(len(self._packed), len(self._scales), -1)
        values = quanta.to(dtype) if self._table is None else self._table.to(dtype)[quanta.int()]
        if self._zeros is not None:
            values = values - self._zeros.T[:, :, None].to(dtype)
        return (values * self._scales.T[:, :, None].to(dtype)).flatten(1)


def group_for_int4(columns: int) -> int:
    """Return the largest group size, at most 128, that divides `columns`; 0 if none does, so that the matrix stays floats."""
    return next((group for group in (128, 64, BLOCK) if columns % group == 0), 0)


def quantize_int4(context: ProductContext, weight: torch.Tensor, group: int, own: slice = ALL) -> Matrix:
    """Quantize a weight [R, C] to 4 bits, and return the columns `own` of it, which are a multiple of 32.

    A group's values are rounded to 16 steps from its smallest to its largest, with 0. Groups that are cut become smaller ones.
    """
    groups = weight.float().reshape(len(weight), -1, group)
    least, largest = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
    scales = ((largest - least) / _LARGEST).clamp_min(1e-7).to(context.dtype)
    zeros = (-least / scales.float()).round().clamp(0, _LARGEST)
    quanta = ((groups / scales.float()[:, :, None]).round() + zeros[:, :, None]).clamp(0, _LARGEST)
    columns = weight.shape[1]
    first, end, _ = own.indices(columns)
    part = pack_int4(quanta.flatten(1)[:, own])
    own_scales, own_zeros = (of_columns(each, group, columns, first, end) for each in (scales, zeros.to(torch.uint8)))
    return Matrix(Int4Form(context, (end - first) // own_scales.shape[1]), (part, own_scales, own_zeros))
