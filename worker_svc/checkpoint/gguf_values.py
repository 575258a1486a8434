"""GGUF values: dequantizes stored rows of a tensor to float32, with the gguf package's functions, and Q8_K, which it lacks."""

import gguf
import numpy as np
import numpy.typing as npt

_Q8_K = np.dtype([("scale", "<f4"), ("quanta", "i1", 256), ("sums", "<i2", 16)])


def dequantize(stored: npt.NDArray[np.generic], kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.float32]:
    """Return the values [rows, columns] of rows [rows, bytes of a row]; raise NotImplementedError for types without weights."""
    values: npt.NDArray[np.float32]
    if kind != gguf.GGMLQuantizationType.Q8_K:
        values = gguf.dequantize(stored, kind)
        return values
    blocks = np.ascontiguousarray(stored).view(_Q8_K)
    values = blocks["scale"][..., None] * blocks["quanta"]
    return values.reshape(*stored.shape[:-1], -1)
