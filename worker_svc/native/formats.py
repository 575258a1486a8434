"""Formats of packed weights, as in src/matrix.h, and the format into which each GGUF type is packed.

4-bit types stay 4 bits; types of 5, 6 and 8 bits take 8 bits. Types of fewer bits, and types with uneven values, take 4 bits:
linear quanta (Q2_K), or indices into a table of 16 values. Types of less than two bits, and TQ2_0, take 3 bits: indices into a
table of 8 values. Scales that are products of two numbers in the file are multiplied at load: in float32 if the file has 4 bits
per weight or more, otherwise in half precision, whose rounding is far smaller than the weights' error.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gguf import GGMLQuantizationType as _Kind


@dataclass(frozen=True, slots=True)
class Format:
    """The storage of a matrix's weights; weight = d * (quantum - zero) + m, or d * table[quantum].

    Attributes:
        bits: bits of a weight: 32 for float32, 16 for half precision or bfloat16, 3, 4 or 8 for quanta.
        block: number of columns that share d and m.
        scale_bytes: size of d and of m: 2 for half precision, 4 for float32.
        has_minimum: whether blocks have an m.
        zero: the quantum of the value 0, see above.
        is_bfloat: whether weights of 16 bits are bfloat16.
        table: at most 2 ** bits values from -127 to 127; for 3 bits, and for 4 bits without m.
    """

    bits: int
    block: int = 32
    scale_bytes: int = 2
    has_minimum: bool = False
    zero: int = 0
    table: tuple[int, ...] = ()
    is_bfloat: bool = False


FLOAT32 = Format(32, block=1, scale_bytes=4)
FLOAT16 = Format(16, block=1, scale_bytes=2)
BFLOAT16 = Format(16, block=1, scale_bytes=2, is_bfloat=True)
INT8 = Format(8, zero=128)


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Values of E2M1 times two; GGUF's scales for them are halved."""
_THREE_BITS = tuple(range(-4, 4))
_TERNARY = Format(3, table=(-1, 0, 1, 2))


def _signed(*values: int) -> tuple[int, ...]:
    return tuple(-value for value in reversed(values)) + values


_TWO_BITS = _signed(8, 25, 43)
_ONE_BIT = _signed(1, 7, 9)
"""Values in eighths: -1, 0 and 1, each plus or minus one eighth."""

BLOCK_FORMATS: Mapping[_Kind, Format] = {
    _Kind.Q4_0: Format(4, zero=8),
    _Kind.Q4_1: Format(4, has_minimum=True),
    _Kind.Q5_0: Format(8, zero=16),
    _Kind.Q5_1: Format(8, scale_bytes=4, has_minimum=True),
    _Kind.Q8_0: Format(8, zero=128),
    _Kind.Q2_K: Format(4, block=16, has_minimum=True),
    _Kind.Q3_K: Format(4, block=16, table=_THREE_BITS),
    _Kind.Q4_K: Format(4, scale_bytes=4, has_minimum=True),
    _Kind.Q5_K: Format(8, scale_bytes=4, has_minimum=True),
    _Kind.Q6_K: Format(8, block=16, scale_bytes=4, zero=32),
    _Kind.Q8_K: Format(8, scale_bytes=4, has_minimum=True),
    _Kind.IQ4_NL: Format(4, table=_IQ4),
    _Kind.IQ4_XS: Format(4, scale_bytes=4, table=_IQ4),
    _Kind.MXFP4: Format(4, scale_bytes=4, table=_E2M1),
}
"""GGUF types that src/gguf_blocks.h unpacks, and their formats."""

LATTICE_FORMATS: Mapping[_Kind, Format] = {
    _Kind.IQ1_S: Format(3, table=_ONE_BIT),
    _Kind.IQ1_M: Format(3, block=16, table=_ONE_BIT),
    _Kind.IQ2_XXS: Format(4, table=_TWO_BITS),
    _Kind.IQ2_XS: Format(4, block=16, table=_TWO_BITS),
    _Kind.IQ2_S: Format(4, block=16, table=_TWO_BITS),
    _Kind.IQ3_XXS: Format(4, table=_signed(4, 12, 20, 28, 36, 44, 52, 62)),
    _Kind.IQ3_S: Format(4, table=_signed(1, 3, 5, 7, 9, 11, 13, 15)),
    _Kind.TQ1_0: _TERNARY,
    _Kind.TQ2_0: _TERNARY,
    _Kind.NVFP4: Format(4, block=16, table=_E2M1),
}
"""GGUF types that lattices.py unpacks, with the gguf package, and their formats."""

GGUF_FORMATS: Mapping[_Kind, Format] = {**BLOCK_FORMATS, **LATTICE_FORMATS}
"""GGUF types whose weights stay quantized, and their formats."""
