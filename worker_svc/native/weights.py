"""Weights of the native kernels: matrices in the layouts of src/matrix.h, packed once at load.

GGUF's quantized tensors keep their quanta: 4-bit formats stay 4 bits, those of 5, 6 and 8 bits take 8. Scales of the simple
formats are stored as the file has them; those of the K-quants, products of two numbers there, are multiplied out to float32.
"""

import ctypes
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.native.structures import MatrixFields
from tetrad.worker_svc.native.team import Team

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Format:
    """How the weights of a matrix are stored; weight = d * (quantum - zero) + m.

    Attributes:
        bits: 32 float32; 4 or 8 quanta.
        block: columns that share d and m.
        scale_bytes: of d and of m: 2 half precision, 4 float32.
        has_minimum: whether there is an m.
        zero: see above.
    """

    bits: int
    block: int = 32
    scale_bytes: int = 2
    has_minimum: bool = False
    zero: int = 0


FLOAT32 = Format(32, block=1, scale_bytes=4)
INT8 = Format(8, zero=128)
GGUF_FORMATS = {
    gguf.GGMLQuantizationType.Q4_0: Format(4, zero=8),
    gguf.GGMLQuantizationType.Q4_1: Format(4, has_minimum=True),
    gguf.GGMLQuantizationType.Q5_0: Format(8, zero=16),
    gguf.GGMLQuantizationType.Q5_1: Format(8, scale_bytes=4, has_minimum=True),
    gguf.GGMLQuantizationType.Q8_0: Format(8, zero=128),
    gguf.GGMLQuantizationType.Q4_K: Format(4, scale_bytes=4, has_minimum=True),
    gguf.GGMLQuantizationType.Q5_K: Format(8, scale_bytes=4, has_minimum=True),
    gguf.GGMLQuantizationType.Q6_K: Format(8, block=16, scale_bytes=4, zero=32),
}
"""Those that run quantized; tensors of other types are dequantized at load."""


class NativeMatrix:
    """A packed matrix [rows, columns].

    Args:
        team: that packs it.
        shape: rows and columns.
        layout: of the weights.
        paired: whether the first half of the rows, a gate, multiplies the other half.
    """

    def __init__(self, team: Team, shape: tuple[int, int], layout: Format, *, paired: bool = False) -> None:
        rows, columns = shape
        self._library = team.library
        self.format = layout
        self.fields = MatrixFields(
            rows=rows,
            columns=columns,
            bits=layout.bits,
            block=layout.block,
            scale_bytes=layout.scale_bytes,
            has_minimum=layout.has_minimum,
            zero=layout.zero,
            paired=paired,
        )
        self.size_bytes: int = team.library.tetrad_matrix_size_bytes(ctypes.byref(self.fields))
        self.num_spans: int = team.library.tetrad_matrix_num_spans(team.handle, ctypes.byref(self.fields))
        self._data = _aligned_zeros(self.size_bytes)
        self.fields.data = self._data.ctypes.data

    @property
    def num_outputs(self) -> int:
        """Columns of its product."""
        rows: int = self.fields.rows
        return rows // 2 if self.fields.paired else rows

    @property
    def is_quantized(self) -> bool:
        """Whether its products take quantized activations."""
        return self.format.bits != FLOAT32.bits

    def unpack(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return rows as the products see them, [N, columns]; not of a paired matrix."""
        out = np.empty((len(rows), self.fields.columns), np.float32)
        self._library.tetrad_unpack(ctypes.byref(self.fields), rows.ctypes.data, len(rows), out.ctypes.data)
        return out


def pack_float(team: Team, weight: torch.Tensor, *, paired: bool = False) -> NativeMatrix:
    """Return a float32 matrix of weight [rows, columns]."""
    matrix = NativeMatrix(team, _shape(weight), FLOAT32, paired=paired)
    weight = weight.contiguous()
    team.library.tetrad_pack_float(team.handle, ctypes.byref(matrix.fields), weight.data_ptr())
    return matrix


def pack_int8(team: Team, weight: torch.Tensor, *, paired: bool = False) -> NativeMatrix:
    """Return weight [rows, columns] in 8 bits; in float32 if 32 does not divide its columns."""
    if weight.shape[1] % INT8.block:
        return pack_float(team, weight, paired=paired)
    matrix = NativeMatrix(team, _shape(weight), INT8, paired=paired)
    weight = weight.contiguous()
    team.library.tetrad_pack_int8(team.handle, ctypes.byref(matrix.fields), weight.data_ptr())
    return matrix


def pack_gguf(team: Team, weight: QuantizedTensor, *, paired: bool = False) -> NativeMatrix:
    """Return a matrix of a GGUF tensor of one of GGUF_FORMATS."""
    kind = gguf.GGMLQuantizationType(weight.kind)
    matrix = NativeMatrix(team, weight.shape, GGUF_FORMATS[kind], paired=paired)
    rows = np.ascontiguousarray(weight.rows)
    team.library.tetrad_pack_gguf(team.handle, ctypes.byref(matrix.fields), int(kind), rows.ctypes.data, rows.shape[1])
    return matrix


def _shape(weight: torch.Tensor) -> tuple[int, int]:
    rows, columns = weight.shape
    return rows, columns


def _aligned_zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    data = np.zeros(size_bytes + _ALIGNMENT, np.uint8)
    return data[-data.ctypes.data % _ALIGNMENT :][:size_bytes]
