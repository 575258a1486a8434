"""NVFP4: 4-bit floats (E2M1) with a scale in e4m3 for 16 columns of a row, and a factor in float32 for the matrix.

compressed-tensors has `weight_packed` [R, C / 2] uint8, two values per byte, the first in the low bits, `weight_scale`
[R, C / 16] and `weight_global_scale` [1], by which scales are divided. ModelOpt calls the values `weight` and multiplies by
`weight_scale_2` []. Scales of activations are not used.
"""

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.e2m1 import e2m1_matrix
from tetrad.worker_svc.checkpoint.packed_weights.files import StoredTensors, load, load_matrix
from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix

_GROUP, _LEAST_COLUMNS = 16, 32


def divided_nvfp4(files: StoredTensors, name: str) -> WordMatrix:
    """Return a matrix of compressed-tensors; raise ModelError if its tensors contradict each other."""
    return _matrix(files, f"{name}.weight_packed", f"{name}.weight_scale", 1 / _factor(files, f"{name}.weight_global_scale"))


def multiplied_nvfp4(files: StoredTensors, name: str) -> WordMatrix:
    """Return a matrix of ModelOpt; raise ModelError if its tensors contradict each other."""
    return _matrix(files, f"{name}.weight", f"{name}.weight_scale", _factor(files, f"{name}.weight_scale_2"))


def _matrix(files: StoredTensors, packed_name: str, scales_name: str, factor: torch.Tensor) -> WordMatrix:
    packed = load_matrix(files, packed_name, dtypes=[torch.uint8])
    rows, columns = len(packed), 2 * packed.shape[1]
    if columns % _LEAST_COLUMNS:
        raise ModelError(f"Tensor {packed_name} has {columns} columns; supported: a multiple of {_LEAST_COLUMNS}.")
    scales = load(files, scales_name, (rows, columns // _GROUP), dtypes=[torch.float8_e4m3fn])
    return e2m1_matrix(packed, scales.float() * factor)


def _factor(files: StoredTensors, name: str) -> torch.Tensor:
    return load(files, name, (), (1,), dtypes=[torch.float32]).reshape(())
