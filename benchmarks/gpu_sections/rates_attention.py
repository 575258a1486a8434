"""Rates of attention: prompts are compared with the rate of products, decode steps with the bandwidth."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.floors import Floors
from benchmarks.gpu_sections.pages import Pages
from tetrad.worker_svc.kernels.attention_launch import prefill_block_rows
from tetrad.worker_svc.kernels.decode_attention import decode_attention
from tetrad.worker_svc.kernels.prefill_attention import prefill_attention, tiles_of

_UNIFORM = ((1, 1000), (1, 8000), (8, 1000), (32, 1000), (128, 1000), (128, 8000))
_STEPS = {
    **{f"{batch} x {context}": [context] * batch for batch, context in _UNIFORM},
    "1 x 30000, 31 x 500": [*[500] * 31, 30_000],
}
"""The contexts of decode steps, by name."""
_L2_BYTES = 100 << 20
"""An upper limit of the size of any card's L2 cache."""


def run(bench: Bench, floors: Floors, findings: Findings) -> None:
    """Add the tables of prompts and of decode steps."""
    _prompts(bench, floors, findings)
    _decodes(bench, floors, findings)


def _prompts(bench: Bench, floors: Floors, findings: Findings) -> None:
    dtype = torch.bfloat16 if bench.is_gpu else torch.float16
    rows = []
    for length in bench.pick([8192, 2048, 512], [40]):
        for heads in bench.pick([(12, 2, 128), (32, 8, 128), (9, 3, 64)], [(2, 1, 16)]):
            seconds = _prompt_seconds(bench, length, heads, dtype)
            # Each head has two products of [L, D] and [D, L], of which causal attention needs one half.
            rate = 2 * length**2 * heads[0] * heads[2] / seconds
            share = rate / floors.gemm
            rows.append([str(length), _shape(heads), f"{seconds * 1e6:.0f} us", f"{rate / 1e12:.3g}", f"{share:.2f}"])
            if (length, heads) == bench.pick((8192, (12, 2, 128)), (40, (2, 1, 16))):
                findings.found["prefill_attention"] = share
    findings.text("Attention of one prompt, causal, bf16; FLOP that causality needs.")
    findings.rows(["tokens", "heads", "time", "TFLOP/s", "share of GEMM rate"], rows)


def _prompt_seconds(bench: Bench, length: int, heads: tuple[int, int, int], dtype: torch.dtype) -> float:
    num_heads, num_kv_heads, head_dim = heads
    pages = Pages(bench, [length], num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    query = bench.normal(length, num_heads, head_dim, dtype=dtype, seed=2)
    first = bench.accelerator.upload(np.array([0, length], np.int32))
    block_rows = prefill_block_rows(head_dim, dtype, dtype, query.device)
    tiles = bench.accelerator.upload(tiles_of(np.array([length]), num_heads // num_kv_heads, block_rows))
    places = (query, pages.cache, pages.tables, first, pages.num_keys, tiles)
    return bench.seconds([lambda: prefill_attention(*places, scale=head_dim**-0.5, block_rows=block_rows)])


def _decodes(bench: Bench, floors: Floors, findings: Findings) -> None:
    rows = []
    heads = bench.pick((12, 2, 128), (2, 1, 16))
    for name, lengths in bench.pick(_STEPS, {"2 x 20": [20, 20], "1 x 200, 1 x 20": [20, 200]}).items():
        seconds, num_bytes = _decode_seconds(bench, lengths, heads)
        rate = num_bytes / seconds
        cells = [f"{seconds * 1e6:.1f} us", f"{rate / 1e12:.3g}", f"{rate / floors.bandwidth:.2f}"]
        rows.append([name, *cells])
    findings.text(f"Attention of decode steps, {_shape(heads)}, bf16; bytes of keys and values.")
    findings.rows(["contexts", "time", "TB/s", "share of bandwidth"], rows)
    findings.text(f"The list of parts, once a step: {_list_seconds(bench, heads) * 1e6:.1f} us.")


def _list_seconds(bench: Bench, heads: tuple[int, int, int]) -> float:
    num_heads, num_kv_heads, head_dim = heads
    pages = Pages(bench, [100] * bench.pick(256, 2), num_kv_heads=num_kv_heads, head_dim=head_dim)
    return bench.seconds([lambda: pages.parts(num_heads, torch.bfloat16)])


def _decode_seconds(bench: Bench, lengths: Sequence[int], heads: tuple[int, int, int]) -> tuple[float, int]:
    """Return the seconds of one layer, and the bytes it reads; several layers alternate, more than the card's L2 can hold."""
    num_heads, num_kv_heads, head_dim = heads
    dtype = torch.bfloat16 if bench.is_gpu else torch.float16
    query = bench.normal(len(lengths), num_heads, head_dim, dtype=dtype, seed=2)
    pages = Pages(bench, lengths, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    parts = pages.parts(num_heads, dtype)
    layers = bench.pick(min(28, 1 + _L2_BYTES // pages.num_bytes), 1)
    caches = [pages.cache, *(pages.cache.clone() for _ in range(layers - 1))]

    def attend(cache: torch.Tensor) -> torch.Tensor:
        return decode_attention(query, cache, pages.tables, parts, scale=head_dim**-0.5)

    works = [partial(attend, cache) for cache in caches]
    return bench.seconds(works), pages.num_bytes


def _shape(heads: tuple[int, int, int]) -> str:
    return f"{heads[0]} / {heads[1]} heads of {heads[2]}"
