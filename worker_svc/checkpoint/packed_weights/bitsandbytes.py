"""Checkpoints of bitsandbytes: Dettmers et al., "QLoRA" (2023), in nf4 or fp4; and "LLM.int8()" (2022).

4 bits: `weight` [R * C / 2, 1] uint8 has the matrix row by row, the first value in the high bits; `weight.quant_map` [16] has
the values; `weight.absmax` has a scale for each block of values, in float32, or quantized again, in bytes: indices into
`weight.nested_quant_map` [256], scaled by `weight.nested_absmax` for 256 of them, plus an offset. Sizes and offset are in
`weight.quant_state.bitsandbytes__nf4`, a JSON text as bytes.
8 bits: `weight` [R, C] int8 and `SCB` [R], the largest value of each row; `weight_format` 0: the matrix is row by row.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.files import FLOATS, StoredTensors, load, load_matrix
from tetrad.worker_svc.checkpoint.packed_weights.grouped import GroupedMatrix
from tetrad.worker_svc.checkpoint.packed_weights.reader import Packed

_STATE = "weight.quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
_BYTES = (torch.uint8,)
_INT8_ZERO = 128
_MAX_SIZE = 1 << 24


class BitsAndBytesReader:
    """The Reader of bitsandbytes' checkpoints. It needs no values of the config: all values are in the tensors."""

    def __init__(self, _config: Mapping[str, Any]) -> None:
        pass

    def reads(self, files: StoredTensors, name: str) -> bool:
        """See Reader."""
        return files.has(f"{name}.SCB") or _state_name(files, name) is not None

    def read(self, files: StoredTensors, name: str) -> Packed:
        """See Reader."""
        state_name = _state_name(files, name)
        return _int8(files, name) if state_name is None else _four_bits(files, name, _State.read(files, state_name))


class _State:
    """The needed values of the JSON text about a matrix."""

    def __init__(self, shape: tuple[int, int], block: int, nested_block: int, nested_offset: float) -> None:
        self.shape, self.block = shape, block
        self.nested_block, self.nested_offset = nested_block, nested_offset

    @classmethod
    def read(cls, files: StoredTensors, name: str) -> "_State":
        """Return the values; raise ModelError if the text is not in bitsandbytes' form."""
        text = bytes(load(files, name, dtypes=_BYTES).flatten().tolist())
        try:
            state = json.loads(text)
            rows, columns = state["shape"]
            block, nested_block = state["blocksize"], state.get("nested_blocksize", 256)
            offset = float(state.get("nested_offset", 0.0))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(f"Tensor {name} holds no state of bitsandbytes.") from error
        if not all(type(n) is int and 0 < n <= _MAX_SIZE for n in (rows, columns, block, nested_block)):
            raise ModelError(f"Tensor {name} holds sizes that cannot be: shape {rows!r:.20} x {columns!r:.20}.")
        return cls((rows, columns), block, nested_block, offset)


def _state_name(files: StoredTensors, name: str) -> str | None:
    return next((f"{name}.{_STATE}{kind}" for kind in _KINDS if files.has(f"{name}.{_STATE}{kind}")), None)


def _four_bits(files: StoredTensors, name: str, state: _State) -> Packed:
    rows, columns = state.shape
    num_values, num_blocks = rows * columns, math.ceil(rows * columns / state.block)
    num_bytes = math.ceil(num_values / 2)
    packed = load(files, f"{name}.weight", (num_bytes, 1), (1, num_bytes), (num_bytes,), dtypes=_BYTES).flatten()
    table = load(files, f"{name}.weight.quant_map", (16,), dtypes=FLOATS).float()
    scales = _scales(files, name, num_blocks, state)
    quanta = torch.stack([packed >> 4, packed & 15], 1).flatten()[:num_values].view(rows, columns)
    if columns % state.block == 0 and state.block % 32 == 0:
        return GroupedMatrix(4, quanta, scales.view(rows, -1), table=table)
    wide = scales.repeat_interleave(state.block)[:num_values].view(rows, columns)
    return table[quanta.int()] * wide


def _scales(files: StoredTensors, name: str, count: int, state: _State) -> torch.Tensor:
    stored = load(files, f"{name}.weight.absmax", (count,), dtypes=(torch.uint8, torch.float32))
    if stored.dtype != torch.uint8:
        return stored.float()
    table = load(files, f"{name}.weight.nested_quant_map", (256,), dtypes=FLOATS).float()
    num_nested = math.ceil(count / state.nested_block)
    nested = load(files, f"{name}.weight.nested_absmax", (num_nested,), dtypes=FLOATS).float()
    return table[stored.int()] * nested.repeat_interleave(state.nested_block)[:count] + state.nested_offset


def _int8(files: StoredTensors, name: str) -> GroupedMatrix:
    form = f"{name}.weight_format"
    if files.has(form) and (order := int(load(files, form, (), (1,), dtypes=_BYTES))):
        raise ModelError(f"Tensor {form} is {order}, an order for one kind of GPU, which is not supported; supported: 0, rows.")
    weight = load_matrix(files, f"{name}.weight", dtypes=[torch.int8])
    scales = load(files, f"{name}.SCB", (len(weight),), dtypes=FLOATS).float()[:, None] / 127
    return GroupedMatrix(8, weight.view(torch.uint8) ^ _INT8_ZERO, scales, _INT8_ZERO)
