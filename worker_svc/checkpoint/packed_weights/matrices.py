"""Matrices: the forms in which readers return a matrix, and the form that every device reads."""

import torch

from tetrad.worker_svc.checkpoint.packed_weights.fp8_matrix import Fp8Matrix
from tetrad.worker_svc.checkpoint.packed_weights.grouped import GroupedMatrix, rounded
from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix

PackedMatrix = GroupedMatrix | WordMatrix | Fp8Matrix
"""A matrix of few bits."""
Matrix = PackedMatrix | torch.Tensor
"""A matrix of few bits, or a float32 matrix [R, C] from a format without groups of columns."""


def in_groups(matrix: Matrix) -> GroupedMatrix | None:
    """Return a matrix whose groups of columns are in order; others are rounded to 8 bits, see `rounded`."""
    match matrix:
        case GroupedMatrix():
            return matrix
        case WordMatrix(groups=None):
            return matrix.unpacked()[0]
        case torch.Tensor():
            return rounded(matrix)
    return rounded(matrix.dequantized())
