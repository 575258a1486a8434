"""E2M1: 4-bit floats with a sign, two bits of exponent and one of fraction, the values of MXFP4 and NVFP4."""

import torch

from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix

_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The values times two, so that all are whole numbers."""


def e2m1_matrix(packed: torch.Tensor, scales: torch.Tensor) -> WordMatrix:
    """Return the matrix of packed values [R, C / 2], two per byte, the first in the low bits, and scales [R, C / G] float32."""
    return WordMatrix(4, packed, scales / 2, table=torch.tensor(_DOUBLED, dtype=torch.float32))
