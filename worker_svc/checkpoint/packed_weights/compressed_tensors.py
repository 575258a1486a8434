"""Checkpoints of compressed-tensors: integers of 4 or 8 bits, packed into words or as int8, fp8, MXFP4 and NVFP4.

Packed: `weight_packed` [R, C * bits / 32] int32, lowest first, and `weight_shape`; quanta are stored plus 2^(bits - 1). Int8:
`weight` [R, C]. Both have `weight_scale` [R, C / G], [R, 1], [R] or [1], and, unless symmetric, `weight_zero_point`: int8, or
packed along the rows. `weight_g_idx` gives each column's group if groups are not in order. MXFP4: `weight_packed` [R, C / 2]
uint8 and `weight_scale` [R, C / 32] uint8; NVFP4: see nvfp4.py. Granite's experts are in one stack: the same tensors [E, ...].

A matrix of the `ignore` list has a `weight` in floats and no scale. The config's values for activations and the KV cache
are not used: activations are rounded like those of other formats.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.files import FLOATS, StoredTensors, columns_of_group, load, load_matrix
from tetrad.worker_svc.checkpoint.packed_weights.fp8 import Fp8Reader, block_of
from tetrad.worker_svc.checkpoint.packed_weights.matrices import Matrix
from tetrad.worker_svc.checkpoint.packed_weights.mxfp4 import mxfp4_matrix
from tetrad.worker_svc.checkpoint.packed_weights.nvfp4 import divided_nvfp4
from tetrad.worker_svc.checkpoint.packed_weights.reader import Packed
from tetrad.worker_svc.checkpoint.packed_weights.stacks import find_stack
from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix
from tetrad.worker_svc.checkpoint.packed_weights.words import unpack, values_per_word
from tetrad.worker_svc.model_facts.quantization import choose

_FORMATS = [
    "pack-quantized",
    "int-quantized",
    "naive-quantized",
    "float-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
    "mixed-precision",
]
_OFFLINE = ("weight_input", "weight_output")
"""Places of transforms that were applied when the checkpoint was written."""
_INT8_ZERO = 128


class CompressedTensorsReader:
    """The Reader of compressed-tensors. It finds a matrix's format by its tensors, because formats may differ between groups.

    Args:
        config: the quantization_config.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        _check_sparsity(config.get("sparsity_config"))
        _check_transforms(config.get("transform_config"))
        choose(config, "format", _FORMATS)
        groups = config.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise ModelError("quantization_config: config_groups says nothing.")
        blocks = {_block(group) for group in groups.values()}
        if len(blocks) > 1:
            raise ModelError("quantization_config: config_groups of blocks and of others at once are not supported.")
        self._fp8 = Fp8Reader(blocks.pop())

    def reads(self, files: StoredTensors, name: str) -> bool:
        """See Reader."""
        return files.has(f"{name}.weight_packed") or self._fp8.reads(files, name)

    def read(self, files: StoredTensors, name: str) -> Packed:
        """See Reader."""
        stack = find_stack(files, name, self._read_one)
        return self._read_one(files, name) if stack is None else stack

    def _read_one(self, files: StoredTensors, name: str) -> Matrix:
        if files.has(f"{name}.weight_global_scale"):
            return divided_nvfp4(files, name)
        if _has_exponents(files, name):
            return _mxfp4(files, name)
        if files.has(f"{name}.weight_packed"):
            words = _packed(files, name)
        elif files.load_stored(f"{name}.weight").dtype == torch.int8:
            words = _int8(files, name)
        else:
            return self._fp8.read(files, name)
        return _in_groups(files, name, words)


class _Words(NamedTuple):
    """Values of a matrix: see the attributes of WordMatrix."""

    bits: int
    words: torch.Tensor
    zeros: torch.Tensor | int
    flipped: int = 0


def _check_sparsity(sparsity: Any) -> None:
    """Raise ModelError for sparse weights, which are stored without their zeros."""
    form = sparsity.get("format", "dense") if isinstance(sparsity, Mapping) else "dense"
    if form != "dense":
        raise ModelError(
            f"quantization_config: sparsity_config has the format {form!r:.80}, which is not supported; supported: 'dense'."
        )


def _check_transforms(transforms: Any) -> None:
    """Raise ModelError for rotations of activations in each step; rotations of weights are in the stored weights."""
    groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
    for name, scheme in groups.items() if isinstance(groups, Mapping) else ():
        applied = scheme.get("apply") if isinstance(scheme, Mapping) else None
        for each in applied if isinstance(applied, list) else ():
            location = each.get("location") if isinstance(each, Mapping) else None
            if location not in _OFFLINE:
                raise ModelError(
                    f"quantization_config: transform_config {name!r:.40} changes {location!r:.40}, which is not supported; "
                    f"supported: {', '.join(_OFFLINE)}."
                )


def _block(group: Any) -> tuple[int, int] | None:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ModelError("quantization_config: a group of config_groups says nothing of its weights.")
    if group.get("format") is not None:
        choose(group, "format", _FORMATS)
    choose(weights, "num_bits", [4, 8])
    choose(weights, "type", ["int", "float"])
    strategy = choose(weights, "strategy", ["tensor", "channel", "group", "block", "tensor_group"])
    return block_of(weights, "block_structure") if strategy == "block" else None


def _packed(files: StoredTensors, name: str) -> _Words:
    words = load_matrix(files, f"{name}.weight_packed", dtypes=[torch.int32])
    shape = load(files, f"{name}.weight_shape", (2,), dtypes=[torch.int32, torch.int64]).tolist()
    bits = next((bits for bits in (4, 8) if shape == [len(words), words.shape[1] * 32 // bits]), None)
    if bits is None:
        raise ModelError(
            f"Tensor {name}.weight_packed of {tuple(words.shape)} words does not hold {shape} values of 4 or 8 bits."
        )
    if not files.has(f"{name}.weight_zero_point"):
        return _Words(bits, words, 1 << bits - 1)
    zeros = load_matrix(files, f"{name}.weight_zero_point", dtypes=[torch.int32])
    if len(zeros) * 32 != len(words) * bits:
        raise ModelError(f"Tensor {name}.weight_zero_point has {len(zeros)} words for {len(words)} rows of {bits} bits.")
    return _Words(bits, words, unpack(zeros.T, bits).T.contiguous())


def _has_exponents(files: StoredTensors, name: str) -> bool:
    scales = f"{name}.weight_scale"
    return files.has(scales) and files.load_stored(scales).dtype == torch.uint8


def _mxfp4(files: StoredTensors, name: str) -> WordMatrix:
    packed = load_matrix(files, f"{name}.weight_packed", dtypes=[torch.uint8])
    rows, columns = len(packed), 2 * packed.shape[1]
    columns_of_group(f"{name}.weight_packed", columns, columns // 32)
    return mxfp4_matrix(packed, load(files, f"{name}.weight_scale", (rows, columns // 32), dtypes=[torch.uint8]))


def _int8(files: StoredTensors, name: str) -> _Words:
    weight = load_matrix(files, f"{name}.weight", dtypes=[torch.int8]).view(torch.uint8)
    if not files.has(f"{name}.weight_zero_point"):
        return _Words(8, weight, _INT8_ZERO, flipped=_INT8_ZERO)
    zeros = load(files, f"{name}.weight_zero_point", dtypes=[torch.int8])
    zeros = zeros.contiguous().view(torch.uint8).reshape(-1, zeros.shape[1] if zeros.dim() == 2 else 1) ^ _INT8_ZERO
    return _Words(8, weight, zeros, flipped=_INT8_ZERO)


def _in_groups(files: StoredTensors, name: str, stored: _Words) -> WordMatrix:
    rows, columns = len(stored.words), stored.words.shape[1] * values_per_word(stored.words, stored.bits)
    zeros = stored.zeros
    scales = load(files, f"{name}.weight_scale", dtypes=FLOATS).float()
    scales = scales.reshape(-1, scales.shape[1] if scales.dim() == 2 else 1)
    count = scales.shape[1]
    if isinstance(zeros, torch.Tensor) and zeros.shape != scales.shape:
        raise ModelError(f"Tensor {name}.weight_zero_point has {tuple(zeros.shape)} values for {tuple(scales.shape)} scales.")
    if len(scales) not in (1, rows):
        raise ModelError(f"Tensor {name}.weight_scale has {len(scales)} rows for {rows} of the weight.")
    group = columns_of_group(f"{name}.weight_scale", columns, count)
    scales = scales.expand(rows, count)
    if isinstance(zeros, torch.Tensor):
        zeros = zeros.expand(rows, count)
    matrix = WordMatrix(stored.bits, stored.words, scales, zeros, flipped=stored.flipped)
    if not files.has(f"{name}.weight_g_idx"):
        return matrix
    groups = load(files, f"{name}.weight_g_idx", (columns,), dtypes=[torch.int32]).to(torch.int64)
    if torch.equal(groups, torch.arange(columns) // group) or int(groups.max()) < 0:
        return matrix
    if int(groups.min()) < 0 or int(groups.max()) >= count:
        raise ModelError(f"Tensor {name}.weight_g_idx names groups that are not there; there are {count}.")
    return replace(matrix, groups=groups)
