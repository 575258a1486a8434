"""Lattice types of GGUF: groups of 4 or 8 weights are stored as an index into a large table, with separate signs and scales.

The gguf package has the tables and dequantizes the weights; every value is one of at most 16 multiples of its block's scale. So
this module reads the scales from the file, and computes the quanta from the values. These types are rare: loading takes about
one second per 10 million weights.
"""

from collections.abc import Callable, Mapping

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as _Kind

from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.native.formats import LATTICE_FORMATS, Format

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Scales = npt.NDArray[np.floating]
_AT_ONCE = 1 << 21
"""Number of weights that are dequantized at once."""


def read_lattice(tensor: QuantizedTensor) -> tuple[Bytes, Floats]:
    """Return quanta [rows, columns] and scales [rows, columns / block] of a tensor with a type of LATTICE_FORMATS."""
    kind, (rows, columns) = _Kind(tensor.kind), tensor.shape
    layout = LATTICE_FORMATS[kind]
    quanta = np.empty((rows, columns), np.uint8)
    scales = np.empty((rows, columns // layout.block), np.float32)
    step = max(1, _AT_ONCE // columns)
    for first in range(0, rows, step):
        part = slice(first, first + step)
        stored = np.ascontiguousarray(tensor.rows[part])
        blocks = stored.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
        scales[part] = _SCALES[kind](blocks).reshape(len(stored), -1)
        quanta[part] = _quanta(gguf.dequantize(stored, kind), scales[part], layout)
    return quanta, scales


def _quanta(values: Floats, scales: Floats, layout: Format) -> Bytes:
    wide = np.repeat(scales, layout.block, axis=1)
    with np.errstate(all="ignore"):  # with a scale that is 0 or not finite, quanta have no meaning
        steps = np.nan_to_num(np.rint(values / wide), nan=0.0, posinf=0.0, neginf=0.0).clip(-127, 127).astype(np.int16)
    quanta: Bytes = _places(layout)[steps + 128]
    return quanta


def _places(layout: Format) -> Bytes:
    """Return a table of the quanta for the steps -128 to 127; the index is the step + 128."""
    values = layout.table or tuple(quantum - layout.zero for quantum in range(16))
    places = np.zeros(256, np.uint8)
    for place, value in enumerate(values):
        places[value + 128] = place
    return places


def _halves(blocks: Bytes, at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _words(blocks: Bytes, begin: int, count: int) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(blocks[:, begin : begin + 4 * count]).view(np.uint32)


def _nibbles(stored: Bytes) -> Floats:
    return np.stack([stored & 15, stored >> 4], axis=2).reshape(len(stored), -1).astype(np.float32)


def _iq1_s(blocks: Bytes) -> Scales:
    high = np.ascontiguousarray(blocks[:, 34:50]).view(np.uint16)
    return _halves(blocks, 0) * (2.0 * (high >> 12 & 7) + 1.0) / 8


def _iq1_m(blocks: Bytes) -> Scales:
    """Return IQ1_M's scales: the scale of 256 weights is in the highest bits of four words, with four 3-bit scales each."""
    words = np.ascontiguousarray(blocks[:, 48:56]).view(np.uint16)
    bits = (words[:, 0] >> 12) | (words[:, 1] >> 8 & 0x00F0) | (words[:, 2] >> 4 & 0x0F00) | (words[:, 3] & 0xF000)
    small = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), -1)
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)[:, None] * (2.0 * small + 1.0) / 8


def _iq2_xxs(blocks: Bytes) -> Scales:
    return _halves(blocks, 0) * (0.5 + (_words(blocks, 2, 16)[:, 1::2] >> 28)) * 0.25


def _iq3_xxs(blocks: Bytes) -> Scales:
    return _halves(blocks, 0) * (0.5 + (_words(blocks, 66, 8) >> 28)) * 0.5


def _iq3_s(blocks: Bytes) -> Scales:
    return _halves(blocks, 0) * (1.0 + 2.0 * _nibbles(blocks[:, 106:110]))


def _iq2_of(begin: int) -> Callable[[Bytes], Scales]:
    return lambda blocks: _halves(blocks, 0) * (0.5 + _nibbles(blocks[:, begin : begin + 8])) * 0.25


def _ternary_of(at: int) -> Callable[[Bytes], Scales]:
    return lambda blocks: np.repeat(_halves(blocks, at), 8, axis=1)


def _nvfp4(blocks: Bytes) -> Scales:
    """Return the scales of NVFP4: E4M3 without a sign, halved; its NaN counts as 0."""
    stored = blocks[:, :4]
    exponent, mantissa = (stored >> 3 & 15).astype(np.int32), (stored & 7).astype(np.float32)
    values = np.where(exponent == 0, mantissa * 2.0**-9, np.ldexp(1.0 + mantissa / 8, exponent - 7))
    return np.where(stored == 0x7F, 0.0, values * 0.5).astype(np.float32)


_SCALES: Mapping[_Kind, Callable[[Bytes], Scales]] = {
    _Kind.IQ1_S: _iq1_s,
    _Kind.IQ1_M: _iq1_m,
    _Kind.IQ2_XXS: _iq2_xxs,
    _Kind.IQ2_XS: _iq2_of(66),
    _Kind.IQ2_S: _iq2_of(74),
    _Kind.IQ3_XXS: _iq3_xxs,
    _Kind.IQ3_S: _iq3_s,
    _Kind.TQ1_0: _ternary_of(52),
    _Kind.TQ2_0: _ternary_of(64),
    _Kind.NVFP4: _nvfp4,
}
