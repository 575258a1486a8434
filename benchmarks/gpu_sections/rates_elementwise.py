"""Rates of memory-bound kernels (norms, activations, rotation), compared with the bandwidth."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.floors import Floors
from tetrad.worker_svc.kernels.activation import silu_mul
from tetrad.worker_svc.kernels.rms_norm import add_rms_norm
from tetrad.worker_svc.kernels.rotate_and_cache import rotate_and_cache

_BF16 = torch.bfloat16
_COPIES = 8
Made = tuple[Callable[[], object], int]
"""A function that runs a kernel, and the number of bytes that the kernel reads and writes."""


def run(bench: Bench, floors: Floors, findings: Findings) -> None:
    """Add a table of the kernels' times and shares of the bandwidth to the findings."""
    rows = []
    for num_tokens in bench.pick([1, 128, 8192], [2]):
        for name, make in (("add_rms_norm", _norm), ("silu_mul", _gated), ("rotate_and_cache", _rotation)):
            made = [make(bench, num_tokens) for _ in range(_COPIES)]
            seconds, num_bytes = bench.seconds([kernel for kernel, _ in made]), made[0][1]
            share = floors.bytes_s(num_bytes) / seconds
            rows.append([name, str(num_tokens), f"{seconds * 1e6:.1f} us", f"{share:.2f}"])
    findings.text(f"Other kernels of a layer, bf16; {_COPIES} copies of all tensors take turns.")
    findings.rows(["kernel", "tokens", "time", "share of bandwidth"], rows)


def _norm(bench: Bench, num_tokens: int) -> Made:
    size = bench.pick(1536, 32)
    x, residual, weight = (bench.normal(*shape, dtype=_BF16) for shape in ((num_tokens, size), (num_tokens, size), (size,)))
    return partial(add_rms_norm, x, residual, weight, 1e-6), 4 * x.nbytes


def _gated(bench: Bench, num_tokens: int) -> Made:
    gate_up = bench.normal(num_tokens, 2 * bench.pick(8960, 32), dtype=_BF16)
    return partial(silu_mul, gate_up), gate_up.nbytes * 3 // 2


def _rotation(bench: Bench, num_tokens: int) -> Made:
    num_heads, num_kv_heads, head_dim = bench.pick((12, 2, 128), (2, 1, 16))
    qkv = bench.normal(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim, dtype=_BF16)
    cos_sin = bench.normal(num_tokens, head_dim)
    cache = bench.normal(num_tokens // 16 + 1, 16, 2, num_kv_heads, head_dim, dtype=_BF16)
    slots = torch.arange(num_tokens, device=bench.device)
    return partial(rotate_and_cache, qkv, cos_sin, slots, cache, num_heads), 2 * qkv.nbytes + cos_sin.nbytes
