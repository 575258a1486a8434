"""Fp8: weights in e4m3, with a scale for each row, or for each group of columns of a row.

With few rows of activations, activations stay floats: the time of such a step is that of reading weights, and floats are more
exact. More rows are quantized to e4m3 in each step, with scales for each row, if the device can multiply e4m3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from tetrad.worker_svc.kernels.byte_matmul import byte_matmul
from tetrad.worker_svc.kernels.expert_weights import ExpertWeights
from tetrad.worker_svc.kernels.quantize_rows import quantize_rows
from tetrad.worker_svc.kernels.tile_shapes import TileShape, shape_by_rule
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.quantization.context import ProductContext
from tetrad.worker_svc.quantization.matrix import ALL, Matrix

FEW_ROWS = 16
"""Largest number of rows of activations that stay floats."""

_MOST_ROWS = 64  # of activations in e4m3 that this program's kernel multiplies faster than torch
_LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class Fp8Form:
    """The form of a Matrix with two tensors: e4m3's bits [R, C] uint8, and scales [R, ceil(C / group)].

    The bits are uint8 because few operations of torch support e4m3.

    Attributes:
        context: the product context.
        group: number of columns that share a scale; C: the whole row.
    """

    context: ProductContext
    group: int

    def linear(self, tensors: Sequence[torch.Tensor], bias: torch.Tensor | None) -> Linear:
        """See Form."""
        bits, scales = tensors
        return Fp8Linear(self, bits, scales, bias)


class Fp8Linear:
    """A Linear with weights in e4m3.

    Args:
        form: the form of the tensors.
        bits: [N, K] uint8.
        scales: [ceil(K / group), N] float32.
        bias: [N] or None.
    """

    def __init__(self, form: Fp8Form, bits: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._context, self._group = form.context, form.group
        self._bits, self._scales, self._bias = bits, scales, bias
        self._is_grouped = form.group < bits.shape[1]
        self._suffix = f"/{form.group}" if self._is_grouped else ""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, N] of x [T, K], in x's type."""
        if len(x) > FEW_ROWS and self._context.has_fp8:
            return self._multiply_quantized(x)
        shape = self._context.shapes.of(f"fp8{self._suffix}", len(x), *self._bits.shape)
        if shape is None:
            return F.linear(x, self._widened(x.dtype), self._bias)
        return byte_matmul(
            x,
            self._weight,
            self._scales,
            self._bias,
            dtype=x.dtype,
            group=self._group,
            shape=shape,
            tickets=self._context.tickets,
        )

    @property
    def _weight(self) -> torch.Tensor:
        return self._bits.view(torch.float8_e4m3fn) if self._context.has_fp8 else self._bits

    def weights(self) -> ExpertWeights:
        """See Stackable."""
        return ExpertWeights(self._bits, self._bias, self._scales, group=self._group, has_fp8=self._context.has_fp8)

    def _multiply_quantized(self, x: torch.Tensor) -> torch.Tensor:
        quantized, row_scales = quantize_rows(x, self._group)
        rule = _library_rule if x.is_cuda and self._has_library_product(x.dtype) else shape_by_rule
        num_outputs, num_columns = self._bits.shape
        shape = self._context.shapes.of(f"fp8xfp8{self._suffix}", len(x), num_outputs, num_columns, rule)
        if shape is None:
            return self._multiply_by_library(x, quantized, row_scales)
        return byte_matmul(
            quantized,
            self._weight,
            self._scales,
            self._bias,
            dtype=x.dtype,
            group=self._group,
            shape=shape,
            tickets=self._context.tickets,
            row_scales=row_scales,
        )

    def _multiply_by_library(self, x: torch.Tensor, quantized: torch.Tensor, row_scales: torch.Tensor) -> torch.Tensor:
        """Multiply with torch's fp8 product, which needs one scale per row, bfloat16 outputs, and multiples of 16 for K and N.

        Other matrices are converted to floats.
        """
        if not self._has_library_product(x.dtype):
            return F.linear(x, self._widened(x.dtype), self._bias)
        scaled_mm = torch._scaled_mm  # noqa: SLF001 - torch has no public name for it
        weight = self._weight.T
        return scaled_mm(quantized, weight, scale_a=row_scales.T, scale_b=self._scales, bias=self._bias, out_dtype=x.dtype)

    def _has_library_product(self, dtype: torch.dtype) -> bool:
        num_outputs, num_columns = self._bits.shape
        return not self._is_grouped and dtype == torch.bfloat16 and num_outputs % 16 == num_columns % 16 == 0

    def _widened(self, dtype: torch.dtype) -> torch.Tensor:
        columns = self._bits.shape[1]
        scales = self._scales.T.repeat_interleave(self._group, 1)[:, :columns]
        return (self._bits.view(torch.float8_e4m3fn).float() * scales).to(dtype)


def _library_rule(num_rows: int, num_outputs: int, num_columns: int, num_processors: int) -> TileShape | None:
    """Return the shape of a product that torch has as well: with many rows, an H100 is faster with torch's."""
    return None if num_rows > _MOST_ROWS else shape_by_rule(num_rows, num_outputs, num_columns, num_processors)


def quantize_fp8(context: ProductContext, weight: torch.Tensor, own: slice = ALL) -> Matrix:
    """Quantize a weight [R, C] to e4m3, and return the columns `own` of it.

    The largest value of a row is 448 times its scale. Non-finite rows stay non-finite.
    """
    wide = weight.float()
    scales = wide.abs().amax(1, keepdim=True).clamp_min(1e-12) / _LARGEST
    part = (wide[:, own] / scales).to(torch.float8_e4m3fn)
    return fp8_matrix(context, part, scales, part.shape[1])


def fp8_matrix(context: ProductContext, weight: torch.Tensor, scales: torch.Tensor, group: int) -> Matrix:
    """Return the matrix of e4m3 weights [R, C] and scales [R, ceil(C / group)]; a row with a NaN is NaN on every device."""
    bits = weight.view(torch.uint8)
    is_nan = (bits & 0x7F == 0x7F).any(1, keepdim=True)
    return Matrix(Fp8Form(context, group), (bits, scales.float().masked_fill(is_nan, torch.nan)))
