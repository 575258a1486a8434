"""Audio samples: a file of the samples of a program, which no codec has touched.

The library sends arrays so. The file travels in place of an audio file between the frontend and the tokenizer. It is a sign,
the rate, and mono samples in float32.
"""

import struct

SIGN = b"\x00samples\n"
"""First bytes of such a file, which no container of audio has."""
_RATE = struct.Struct("<I")
_SAMPLE_BYTES = 4


def join_samples(samples: bytes, rate: int) -> bytes:
    """Return the file of samples.

    Args:
        samples: little-endian float32.
        rate: samples of a second; 0: as many as the model's.
    """
    return SIGN + _RATE.pack(rate) + samples


def split_samples(file: bytes) -> tuple[int, memoryview]:
    """Return rate and samples of a file that begins with SIGN. Raises ValueError if it is cut."""
    start = len(SIGN) + _RATE.size
    if len(file) < start or (len(file) - start) % _SAMPLE_BYTES:
        raise ValueError("the file of its samples is cut")
    [rate] = _RATE.unpack_from(file, len(SIGN))
    return rate, memoryview(file)[start:]
