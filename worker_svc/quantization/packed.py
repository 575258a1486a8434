"""Packed checkpoints: keeps matrices that a reader of packed_weights returns quantized on the device, and unpacks words there.

MXFP4, NVFP4, NF4 and integers of 4 bits stay in 4 bits, fp8 and symmetric integers of 8 bits in 8. Asymmetric integers of 8
bits become floats.
"""

from dataclasses import replace

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.packed_weights.fp8_matrix import Fp8Matrix
from tetrad.worker_svc.checkpoint.packed_weights.grouped import BLOCK, GroupedMatrix
from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix
from tetrad.worker_svc.kernels.int4_matmul import SMALL_GROUP, pack_int4
from tetrad.worker_svc.quantization.context import ProductContext
from tetrad.worker_svc.quantization.fp8 import fp8_matrix
from tetrad.worker_svc.quantization.int4 import Int4Form
from tetrad.worker_svc.quantization.int8 import Int8Form
from tetrad.worker_svc.quantization.matrix import Matrix
from tetrad.worker_svc.quantization.plain import PlainForm, PlainScheme

_INT8_ZERO = 128
_FOUR_BITS = 4
_HALF_BYTES = 2


class PackedScheme:
    """The Scheme of checkpoints whose matrices the loader returns as PackedMatrix.

    Args:
        plain: reads matrices that are not quantized.
    """

    def __init__(self, plain: PlainScheme) -> None:
        self._plain = plain

    def read(self, weights: WeightLoader, name: str, rows: int, columns: int) -> Matrix:
        """See Scheme."""
        matrix, context = weights.get_packed(f"{name}.weight", (rows, columns)), self._plain.context
        if matrix is None:
            return self._plain.read(weights, name, rows, columns)
        if isinstance(matrix, Fp8Matrix):
            return _fp8(context, matrix)
        if isinstance(matrix, WordMatrix):
            grouped, order = matrix.to(context.device).unpacked()
            return replace(_on_device(context, grouped), columns=order)
        return _on_device(context, matrix)


def _fp8(context: ProductContext, matrix: Fp8Matrix) -> Matrix:
    """Return the matrix in fp8; in floats if groups are not multiples of 32 columns, which no kernel reads."""
    columns, is_grouped = matrix.shape[1], matrix.scales.shape[1] > 1
    if is_grouped and matrix.group % BLOCK:
        return Matrix(PlainForm(), (matrix.dequantized().to(context.device, context.dtype),))
    bits = matrix.bits.to(context.device).view(torch.float8_e4m3fn)
    return fp8_matrix(context, bits, matrix.scales.to(context.device), matrix.group if is_grouped else columns)


def _on_device(context: ProductContext, matrix: GroupedMatrix) -> Matrix:
    quanta, scales = matrix.quanta.to(context.device), _stored_scales(matrix, context.dtype).to(context.device)
    if matrix.table is not None:
        return Matrix(Int4Form(context, matrix.group, tuple(matrix.table.tolist())), (pack_int4(quanta), scales))
    zeros = matrix.zeros
    if not isinstance(zeros, torch.Tensor):
        zeros = torch.full(scales.shape, zeros, dtype=torch.uint8)
    if matrix.bits <= _FOUR_BITS:
        return Matrix(Int4Form(context, matrix.group), (pack_int4(quanta), scales, zeros.to(context.device)))
    if bool((zeros != _INT8_ZERO).any()):
        return Matrix(PlainForm(), (matrix.dequantized().to(context.device, context.dtype),))
    return Matrix(Int8Form(context, matrix.group), ((quanta ^ _INT8_ZERO).view(torch.int8), scales))


def _stored_scales(matrix: GroupedMatrix, dtype: torch.dtype) -> torch.Tensor:
    """Return the scales in a type of two bytes, first `dtype`, if all values are exact in it, otherwise in float32.

    Scales of 16 columns each are rounded to bfloat16 if activations have this type: in float32 they would take 2 bits a weight.
    """
    if matrix.group == SMALL_GROUP and dtype == torch.bfloat16:
        return matrix.scales.to(dtype)
    halves = dict.fromkeys((dtype, torch.bfloat16, torch.float16))
    rounded = (matrix.scales.to(each) for each in halves if each.itemsize == _HALF_BYTES)
    return next((each for each in rounded if torch.equal(each.float(), matrix.scales)), matrix.scales)
