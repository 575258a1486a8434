"""Launch parameters of the attention kernels: a table, searched by kernel, head size, stored type and device.

attention_launch.json is ordered: the first matching row is used. Its columns:

    kernel          "prefill" or "decode"
    shared_kib      shared memory of a program on the device: 227 (Hopper), 163 (A100), 99 (others)
    value_bytes     bytes of a value in the cache; also 4 if queries are float32, because keys are converted to float32 then
    head_dim        largest head size, padded to a power of two
    block_rows      rows (queries times heads) of a program
    block_keys      keys that a program reads at a time
    num_warps, num_stages, max_registers    Triton's values; max_registers is per thread, null: no limit

A tuner measures and writes the table; nothing is tuned while requests wait.
"""

import json
import math
from dataclasses import dataclass, fields
from functools import cache as cached
from pathlib import Path

import torch

_SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
"""Shared memory by compute capability, from the CUDA programming guide's technical specifications; others have 99 KiB."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch parameters in a row of the table."""

    block_rows: int
    block_keys: int
    num_warps: int
    num_stages: int
    max_registers: int | None

    def num_warps_of(self, block_rows: int) -> int:
        """Return the number of warps for another number of rows, with the same number of rows per warp as in the table."""
        return max(self.num_warps * block_rows // self.block_rows, 1)


def launch_for(kernel: str, query: torch.Tensor, cache: torch.Tensor) -> Launch:
    """Return the launch parameters of "prefill" or "decode" for queries [..., head_dim] and a cache."""
    return find_launch(kernel, query.shape[-1], _value_bytes(query.dtype, cache.dtype), _capability(query.device))


def prefill_block_rows(head_dim: int, query_dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of rows in tiles of prompts; a power of two."""
    return find_launch("prefill", head_dim, _value_bytes(query_dtype, cache_dtype), _capability(device)).block_rows


def decode_block_keys(head_dim: int, query_dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of keys that a program of a decode step reads at a time."""
    return find_launch("decode", head_dim, _value_bytes(query_dtype, cache_dtype), _capability(device)).block_keys


@cached
def find_launch(kernel: str, head_dim: int, value_bytes: int, capability: tuple[int, int]) -> Launch:
    """Return the first matching row of the table."""
    shared_kib, padded = shared_kib_of(capability), padded_head_dim(head_dim)
    for row in json.loads(Path(__file__).with_suffix(".json").read_text()):
        is_asked = row["kernel"] == kernel and row["value_bytes"] == value_bytes
        if is_asked and row["head_dim"] >= padded and row["shared_kib"] <= shared_kib:
            return Launch(**{field.name: row[field.name] for field in fields(Launch)})
    raise AssertionError(f"Heads of {head_dim}, {value_bytes} bytes a value: attention_launch.json has no {kernel} for them.")


def shared_kib_of(capability: tuple[int, int]) -> int:
    """Return the shared memory of a program on a device with this compute capability, in KiB."""
    return _SHARED_KIB.get(capability, 99)


def padded_head_dim(head_dim: int) -> int:
    """Return BLOCK_DIM: the head size padded to a power of two."""
    return max(1 << (head_dim - 1).bit_length(), 16)


def score_factors(scale: float, softcap: float) -> tuple[float, float]:
    """Return to_cap and to_exponent of attend_keys for products times `scale`, capped at `softcap` (0: no cap)."""
    if softcap:
        return 2 * scale / softcap, softcap / math.log(2)
    return 0.0, scale / math.log(2)


def _value_bytes(query_dtype: torch.dtype, cache_dtype: torch.dtype) -> int:
    return (query_dtype if query_dtype == torch.float32 else cache_dtype).itemsize


@cached
def _capability(device: torch.device) -> tuple[int, int]:
    """Return the device's compute capability; for host memory, used as a device in tests, that of Hopper."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
