"""Fp8 checkpoints: weights in e4m3 with one scale per tensor, per row, or per block of a few rows and columns.

`weight` [R, C]; `weight_scale` (or `weight_scale_inv`, with the same meaning) of shape [], [1], [R] or [R, 1], or a value per
block. Hugging Face's `fp8` and `compressed-tensors` write this format. Scales that were measured for activations are not used.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.files import FLOATS, StoredTensors, load, load_matrix
from tetrad.worker_svc.checkpoint.packed_weights.fp8_matrix import Fp8Matrix
from tetrad.worker_svc.model_facts.quantization import choose

_SCALES = ("weight_scale_inv", "weight_scale")
_MAX_BLOCK = 1 << 16


class Fp8Reader:
    """The Reader of fp8 checkpoints.

    Args:
        block: numbers of rows and columns that share a scale; None: a scale per row or per matrix.
    """

    def __init__(self, block: tuple[int, int] | None = None) -> None:
        self._block = block

    def reads(self, files: StoredTensors, name: str) -> bool:
        """See Reader."""
        return any(files.has(f"{name}.{scale}") for scale in _SCALES) and files.has(f"{name}.weight")

    def read(self, files: StoredTensors, name: str) -> Fp8Matrix:
        """See Reader."""
        weight = load_matrix(files, f"{name}.weight", dtypes=[torch.float8_e4m3fn])
        rows, columns = weight.shape
        scale = next(f"{name}.{scale}" for scale in _SCALES if files.has(f"{name}.{scale}"))
        if self._block is None:
            scales = load(files, scale, (), (1,), (rows,), (rows, 1), dtypes=FLOATS).float().reshape(-1, 1)
            return Fp8Matrix(weight.view(torch.uint8), scales.expand(rows, 1), columns)
        high, wide = self._block
        scales = load(files, scale, (-(-rows // high), -(-columns // wide)), dtypes=FLOATS).float()
        return Fp8Matrix(weight.view(torch.uint8), scales.repeat_interleave(high, 0)[:rows], wide)


def block_of(config: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    """Return the numbers of rows and columns of a block from config[key]; None if there are no blocks."""
    block = config.get(key)
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and 0 < n <= _MAX_BLOCK for n in block):
        raise ModelError(f"quantization_config: {key} is {repr(block)[:80]}, not two numbers of rows and columns.")
    return block[0], block[1]


def open_fp8(config: Mapping[str, Any]) -> Fp8Reader:
    """Return the reader of checkpoints with Hugging Face's `fp8`."""
    choose(config, "fmt", ["e4m3", "float8_e4m3fn"], default="e4m3")
    return Fp8Reader(block_of(config, "weight_block_size"))
