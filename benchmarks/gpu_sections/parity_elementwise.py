"""Parity of norms, gated activations, rotation and the write to the cache."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu_sections import exact
from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.parity_case import Case
from tetrad.worker_svc.kernels.activation import gelu_mul, silu_mul
from tetrad.worker_svc.kernels.rms_norm import add_rms_norm, rms_norm
from tetrad.worker_svc.kernels.rotate_and_cache import rotate_and_cache

_EPS = 1e-6
_BLOCK_SIZE = 16
Pair = tuple[torch.Tensor, torch.Tensor]


def cases(bench: Bench) -> Iterator[Case]:
    """Yield the cases."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for rows, size in bench.pick([(8192, 1536), (1, 8192), (257, 576)], [(3, 80)]):
            yield Case("rms_norm", f"{rows} x {size}", partial(_norm, bench, rows, size, dtype))
            yield Case("add_rms_norm", f"{rows} x {size}", partial(_add_norm, bench, rows, size, dtype))
        for rows, size in bench.pick([(8192, 8960), (1, 14336)], [(2, 96)]):
            for gelu in (False, True):
                name = "gelu_mul" if gelu else "silu_mul"
                yield Case(name, f"{rows} x {size}", partial(_gated, bench, rows, size, dtype, gelu=gelu))
    for heads, head_dim in bench.pick([((12, 2), 128), ((9, 3), 64), ((32, 8), 80)], [((3, 1), 64)]):
        for part in ("queries", "keys", "values"):
            shape = f"{bench.pick(4096, 5)} tokens, {heads[0]} / {heads[1]} heads of {head_dim}: {part}"
            yield Case("rotate_and_cache", shape, partial(_rotation, bench, heads, head_dim, part))


def _norm(bench: Bench, rows: int, size: int, dtype: torch.dtype) -> Pair:
    x, weight = bench.normal(rows, size, dtype=dtype), bench.normal(size, dtype=dtype, seed=2)
    return rms_norm(x, weight, _EPS), exact.rms_norm(x, weight, _EPS)


def _add_norm(bench: Bench, rows: int, size: int, dtype: torch.dtype) -> Pair:
    """Return the results of add_rms_norm: the norm and the residual stream, concatenated."""
    x, weight = bench.normal(rows, size, dtype=dtype), bench.normal(size, dtype=dtype, seed=2)
    residual = bench.normal(rows, size, dtype=dtype, seed=3)
    total = residual.double() + x.double()
    normed = add_rms_norm(x, residual, weight, _EPS)
    return torch.cat([normed, residual]), torch.cat([exact.rms_norm(total, weight, _EPS), total])


def _gated(bench: Bench, rows: int, size: int, dtype: torch.dtype, *, gelu: bool) -> Pair:
    gate_up = bench.normal(rows, 2 * size, dtype=dtype)
    return (gelu_mul if gelu else silu_mul)(gate_up), exact.gated(gate_up, gelu=gelu)


def _rotation(bench: Bench, heads: tuple[int, int], head_dim: int, part: str) -> Pair:
    num_tokens, (num_heads, num_kv_heads) = bench.pick(4096, 5), heads
    qkv = bench.normal(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim, dtype=torch.bfloat16)
    frequencies = torch.logspace(0, -6, head_dim // 2, device=bench.device)
    angles = torch.outer(torch.arange(num_tokens, device=bench.device).float() * 7, frequencies)
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
    num_blocks = num_tokens // _BLOCK_SIZE + 2
    slots = torch.randperm(num_blocks * _BLOCK_SIZE, generator=torch.Generator().manual_seed(4))[:num_tokens].to(bench.device)
    cache = bench.normal(num_blocks, _BLOCK_SIZE, 2, num_kv_heads, head_dim, dtype=torch.bfloat16)
    before = qkv.view(num_tokens, -1, head_dim).clone()
    rotate_and_cache(qkv, cos_sin, slots, cache, num_heads)
    written = cache.view(-1, 2, num_kv_heads, head_dim)[slots]
    if part == "queries":
        return qkv.view(num_tokens, -1, head_dim)[:, :num_heads], exact.turned(before[:, :num_heads], cos_sin)
    if part == "keys":
        return written[:, 0], exact.turned(before[:, num_heads : num_heads + num_kv_heads], cos_sin)
    return written[:, 1], before[:, num_heads + num_kv_heads :].double()
