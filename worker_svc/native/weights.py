"""Weights of the native kernels: matrices in the layouts of src/matrix.h, packed once at load.

GGUF's quantized tensors keep their quanta, in the formats of formats.py.
"""

import ctypes

import gguf
import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.native.formats import BFLOAT16, FLOAT16, FLOAT32, GGUF_FORMATS, INT8, LATTICE_FORMATS, Format
from tetrad.worker_svc.native.lattices import read_lattice
from tetrad.worker_svc.native.structures import MatrixFields, Storage
from tetrad.worker_svc.native.team import Team

_FLOATS = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
_TABLE_ZERO = 128
"""Offset of a table's values, because tables hold unsigned bytes."""


class NativeMatrix:
    """A packed matrix [rows, columns].

    Args:
        team: the threads that pack it.
        shape: rows and columns.
        layout: the format of the weights.
        paired: whether the first half of the rows, a gate, multiplies the other half.
        storage: the storage of floats.
    """

    def __init__(
        self,
        team: Team,
        shape: tuple[int, int],
        layout: Format,
        *,
        paired: bool = False,
        storage: Storage = Storage.PLAIN,
    ) -> None:
        rows, columns = shape
        self._library = team.library
        self.format, self._storage = layout, storage
        self.fields = MatrixFields(
            rows=rows,
            columns=columns,
            bits=layout.bits,
            is_bfloat=layout.is_bfloat,
            block=layout.block,
            scale_bytes=layout.scale_bytes,
            has_minimum=layout.has_minimum,
            zero=_TABLE_ZERO if layout.table else layout.zero,
            is_coded=bool(layout.table),
            table=(ctypes.c_uint8 * 16)(*(value + _TABLE_ZERO for value in layout.table)),
            paired=paired,
            storage=storage,
        )
        self.size_bytes: int = team.library.tetrad_matrix_size_bytes(ctypes.byref(self.fields))
        self.num_spans: int = team.library.tetrad_matrix_num_spans(team.handle, ctypes.byref(self.fields))
        self._data = team.weights.zeros(self.size_bytes)
        self.fields.data = self._data.ctypes.data

    @property
    def num_outputs(self) -> int:
        """The number of columns in the matrix's product."""
        rows: int = self.fields.rows
        return rows // 2 if self.fields.paired else rows

    @property
    def takes_floats(self) -> bool:
        """Whether the matrix's products take activations as they are, in float32; else these are converted first."""
        return self.format.bits >= FLOAT16.bits and self._storage is Storage.PLAIN

    def unpack(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the dequantized rows [N, columns] with these indices; the matrix must not be paired."""
        out = np.empty((len(rows), self.fields.columns), np.float32)
        self._library.tetrad_unpack(ctypes.byref(self.fields), rows.ctypes.data, len(rows), out.ctypes.data)
        return out


def pack_float(team: Team, weight: torch.Tensor, *, paired: bool = False) -> NativeMatrix:
    """Pack a weight [rows, columns] in its own type: float32, float16 or bfloat16; products are computed in float32."""
    matrix = NativeMatrix(team, _shape(weight), _FLOATS[weight.dtype], paired=paired)
    weight = weight.contiguous()
    team.library.tetrad_pack_float(team.handle, ctypes.byref(matrix.fields), weight.data_ptr())
    return matrix


def pack_split(team: Team, weight: torch.Tensor, *, paired: bool = False) -> NativeMatrix:
    """Pack a weight [rows, columns] as pairs of bfloat16, for a team with `has_split_products`."""
    matrix = NativeMatrix(team, _shape(weight), FLOAT32, paired=paired, storage=Storage.SPLIT)
    weight = weight.float().contiguous()
    team.library.tetrad_pack_split(team.handle, ctypes.byref(matrix.fields), weight.data_ptr())
    return matrix


def pack_fixed(team: Team, weight: torch.Tensor, *, paired: bool = False) -> NativeMatrix:
    """Pack a weight [rows, columns] in fixed point, for a team with `has_fixed_products`."""
    matrix = NativeMatrix(team, _shape(weight), FLOAT32, paired=paired, storage=Storage.FIXED)
    weight = weight.float().contiguous()
    team.library.tetrad_pack_fixed(team.handle, ctypes.byref(matrix.fields), weight.data_ptr())
    return matrix


def pack_pairs(team: Team, weight: torch.Tensor, *, paired: bool = False) -> NativeMatrix:
    """Pack a weight [rows, columns], rounded to bfloat16, for products with activations in bfloat16.

    The team needs `has_pair_products`. Products are added up in float32.
    """
    matrix = NativeMatrix(team, _shape(weight), BFLOAT16, paired=paired, storage=Storage.PAIRS)
    weight = weight.to(torch.bfloat16).contiguous()
    team.library.tetrad_pack_pairs(team.handle, ctypes.byref(matrix.fields), weight.data_ptr())
    return matrix


def pack_int8(team: Team, weight: torch.Tensor, *, paired: bool = False) -> NativeMatrix:
    """Pack a weight [rows, columns] in 8 bits, or in its own type if the number of columns is not a multiple of 32."""
    if weight.shape[1] % INT8.block:
        return pack_float(team, weight, paired=paired)
    matrix = NativeMatrix(team, _shape(weight), INT8, paired=paired)
    weight = weight.float().contiguous()
    team.library.tetrad_pack_int8(team.handle, ctypes.byref(matrix.fields), weight.data_ptr())
    return matrix


def pack_gguf(team: Team, weight: QuantizedTensor, *, paired: bool = False) -> NativeMatrix:
    """Pack a GGUF tensor with a type of GGUF_FORMATS."""
    kind = gguf.GGMLQuantizationType(weight.kind)
    if kind in LATTICE_FORMATS:
        return pack_quanta(team, *read_lattice(weight), layout=GGUF_FORMATS[kind], paired=paired)
    matrix = NativeMatrix(team, weight.shape, GGUF_FORMATS[kind], paired=paired)
    rows = np.ascontiguousarray(weight.rows)
    team.library.tetrad_pack_gguf(team.handle, ctypes.byref(matrix.fields), int(kind), rows.ctypes.data, rows.shape[1])
    return matrix


def pack_quanta(
    team: Team,
    quanta: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float32],
    minima: npt.NDArray[np.float32] | None = None,
    *,
    layout: Format,
    paired: bool = False,
) -> NativeMatrix:
    """Pack quanta [rows, columns] with scales and, if the format has them, minima [rows, columns / block]."""
    rows, columns = quanta.shape
    matrix = NativeMatrix(team, (rows, columns), layout, paired=paired)
    arrays = [None if each is None else np.ascontiguousarray(each) for each in (quanta, scales, minima)]
    addresses = [None if each is None else each.ctypes.data for each in arrays]
    team.library.tetrad_pack_quanta(team.handle, ctypes.byref(matrix.fields), *addresses)
    return matrix


def _shape(weight: torch.Tensor) -> tuple[int, int]:
    rows, columns = weight.shape
    return rows, columns
