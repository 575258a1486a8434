"""MXFP4: Rouhani et al., "Microscaling Data Formats for Deep Learning" (2023): 4-bit floats, and a power of two for 32 of them.

Published files of gpt-oss have `NAME_blocks` [E, R, C / 32, 16] uint8, the matrices of all experts, two values per byte, the
first in the low bits, and `NAME_scales` [E, R, C / 32] uint8, exponents plus 127. compressed-tensors has the same bytes for
each matrix.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.e2m1 import e2m1_matrix
from tetrad.worker_svc.checkpoint.packed_weights.files import StoredTensors, load
from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix

_BYTES = (torch.uint8,)
_BLOCK, _BLOCK_BYTES = 32, 16
_DIMENSIONS = 4
_SCALES = tuple(2.0 ** (exponent - 127) for exponent in range(256))


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Stack:
    """The matrices of all experts as stored; only selected rows are unpacked.

    Attributes:
        blocks: [E, R, C / 32, 16] uint8.
        exponents: [E, R, C / 32] uint8.
    """

    blocks: torch.Tensor
    exponents: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows of all matrices together, and the number of columns."""
        experts, rows, groups = self.exponents.shape
        return experts * rows, groups * _BLOCK

    def dequantized(self) -> torch.Tensor:
        """Return the weights [E, R, C] in float32."""
        return self.of_rows(lambda tensor: tensor.flatten(0, 1)).dequantized().reshape(*self.exponents.shape[:2], -1)

    def of_rows(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> WordMatrix:
        """Return a matrix of some rows; `choose` selects them from tensors [E, R, ...]."""
        return mxfp4_matrix(choose(self.blocks).flatten(1), choose(self.exponents))


class Mxfp4Reader:
    """The Reader of MXFP4 checkpoints. It needs no values of the config: all values are in the tensors."""

    def __init__(self, _config: Mapping[str, Any]) -> None:
        pass

    def reads(self, files: StoredTensors, name: str) -> bool:
        """See Reader."""
        return files.has(f"{name}_blocks")

    def read(self, files: StoredTensors, name: str) -> Mxfp4Stack:
        """See Reader."""
        blocks = load(files, f"{name}_blocks", dtypes=_BYTES)
        if blocks.dim() != _DIMENSIONS or blocks.shape[3] != _BLOCK_BYTES or not blocks.numel():
            raise ModelError(
                f"Tensor {name}_blocks has shape {tuple(blocks.shape)}, but its quantization asks for blocks of {_BLOCK_BYTES} "
                "bytes in the rows of experts."
            )
        return Mxfp4Stack(blocks, load(files, f"{name}_scales", tuple(blocks.shape[:3]), dtypes=_BYTES))


def mxfp4_matrix(packed: torch.Tensor, exponents: torch.Tensor) -> WordMatrix:
    """Return the matrix of packed values [R, C / 2], two per byte, and exponents [R, C / 32]."""
    return e2m1_matrix(packed, torch.tensor(_SCALES)[exponents.int()])
