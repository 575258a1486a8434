"""Random rows of every GGUF type, for tests: gguf's own quantization where it has one, else random quanta under sane scales."""

import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType
HALVES_AT = {
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
    Kind.Q4_1: (0, 2),
    Kind.Q5_1: (0, 2),
    Kind.TQ1_0: (52,),
    Kind.TQ2_0: (64,),
}
"""Bytes of a block where its scale begins, and its minimum; of other types with a scale in half precision it is byte 0."""
_DIVISORS = {Kind.Q2_K: 24, Kind.Q3_K: 64, Kind.Q4_K: 450, Kind.Q5_K: 900, Kind.Q6_K: 1500, Kind.IQ4_NL: 80, Kind.IQ4_XS: 1600}
"""About what the values of a random block of scale 1 measure; of the lattice types 100."""


def random_rows(kind: Kind, values: np.ndarray) -> np.ndarray:
    """Return rows [R, bytes] of a type: of these values [R, C], or random ones of about their size."""
    if kind in (Kind.F32, Kind.F16):
        return values.astype(np.float16 if kind == Kind.F16 else np.float32)
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        pass
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(values.size)
    blocks = random.integers(0, 256, (len(values), values.shape[1] // per_block, block_bytes), np.uint8)
    fill_scales(kind, blocks, float(values.std()) / _DIVISORS.get(kind, 100))
    return blocks.reshape(len(values), -1)


def fill_scales(kind: Kind, blocks: np.ndarray, scale: float) -> None:
    """Give blocks [..., bytes] this scale, and a minimum 7 times as large."""
    halves = np.array([scale, 7 * scale], np.float16).view(np.uint8)
    if kind == Kind.Q8_K:
        blocks[..., :4] = np.array([scale], np.float32).view(np.uint8)
    elif kind == Kind.MXFP4:
        blocks[..., 0] = round(np.log2(scale)) + 127
    elif kind == Kind.NVFP4:
        blocks[..., :4] = 0x20
    elif kind == Kind.IQ1_M:  # the four parts of the scale are the highest bits of four words
        for word, part in enumerate((halves[0] & 15, halves[0] >> 4, halves[1] & 15, halves[1] >> 4)):
            at = 49 + 2 * word
            blocks[..., at] = blocks[..., at] & 15 | part << 4
    else:
        for index, at in enumerate(HALVES_AT.get(kind, (0,))):
            blocks[..., at : at + 2] = halves[2 * index : 2 * index + 2]
