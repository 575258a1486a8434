"""E2M1: 4-bit floats with a sign, two bits of exponent and one of fraction, the values of MXFP4 and NVFP4."""

import torch

from tetrad.worker_svc.packed_weights.grouped import GroupedMatrix

_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The values times two, so that all are whole numbers."""


def e2m1_matrix(packed: torch.Tensor, scales: torch.Tensor) -> GroupedMatrix:
    """Return the matrix of packed values [R, C / 2], two per byte, the first in the low bits, and scales [R, C / G] float32."""
    quanta = torch.stack([packed & 15, packed >> 4], 2).flatten(1)
    return GroupedMatrix(4, quanta, scales / 2, table=torch.tensor(_DOUBLED, dtype=torch.float32))
