"""Parity of attention over pages: prompts, chunks after a context, mixed batches and decode steps."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.gpu_sections import exact
from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.pages import Pages
from benchmarks.gpu_sections.parity_case import Case
from tetrad.worker_svc.kernels.attention_launch import prefill_block_rows
from tetrad.worker_svc.kernels.decode_attention import decode_attention
from tetrad.worker_svc.kernels.prefill_attention import prefill_attention, tiles_of

Heads = tuple[int, int, int]
"""Number of query heads, number of KV heads, head size."""


class Masks(NamedTuple):
    """The sliding window in keys and the soft cap of scores; 0: none."""

    window: int = 0
    softcap: float = 0.0


_QWEN, _SMOLLM, _PHI, _GEMMA = (12, 2, 128), (9, 3, 64), (32, 32, 80), (16, 8, 256)
_MODELS: tuple[tuple[str, Heads, torch.dtype, Masks], ...] = (
    ("Qwen2.5-1.5B", _QWEN, torch.bfloat16, Masks()),
    ("Qwen2.5-1.5B", _QWEN, torch.bfloat16, Masks(window=304)),
    ("Qwen2.5-1.5B", _QWEN, torch.float32, Masks()),
    ("SmolLM2-135M", _SMOLLM, torch.float16, Masks()),
    ("SmolLM2-135M", _SMOLLM, torch.float32, Masks(window=304)),
    ("Phi-2", _PHI, torch.bfloat16, Masks()),
    ("Gemma-2-9B", _GEMMA, torch.bfloat16, Masks(softcap=50.0)),
    ("Gemma-2-9B", _GEMMA, torch.bfloat16, Masks(window=4096, softcap=50.0)),
)
"""Models whose kernels differ in every property; not all combinations, because each one is a kernel to compile."""
# Without bfloat16, which the interpreter multiplies wrongly.
_TINY = (("small", (2, 1, 16), torch.float16, Masks()), ("small", (6, 2, 16), torch.float32, Masks(window=7)))
Chunks = tuple[tuple[int, int], ...]
"""Per request (number of computed tokens, number of new tokens)."""
Pair = tuple[torch.Tensor, torch.Tensor]


def cases(bench: Bench) -> Iterator[Case]:
    """Yield the cases."""
    # A step of similar contexts, and a step with a long one among short ones.
    contexts = bench.pick([[1, 17, 1000, 4096, 8191, 2500], [60, 20_000, 100, 7, 300]], [[1, 40], [5, 400, 9]])
    steps: list[Chunks] = bench.pick([((0, 2048),), ((3000, 512), (0, 1), (100, 77), (4000, 1))], [((0, 9), (20, 3))])
    for model, heads, dtype, masks in bench.pick(_MODELS, _TINY):
        kind = " ".join([model, *(f"{name} {value:g}" for name, value in masks._asdict().items() if value)])
        for lengths in contexts:
            compute = partial(_decode, bench, lengths, heads, dtype, masks)
            yield Case("decode_attention", f"{kind}, contexts {lengths}", compute)
        for chunks in steps:
            compute = partial(_prefill, bench, chunks, heads, dtype, masks)
            yield Case("prefill_attention", f"{kind}, chunks {list(chunks)}", compute)


def _decode(bench: Bench, lengths: list[int], heads: Heads, dtype: torch.dtype, masks: Masks) -> Pair:
    num_heads, num_kv_heads, head_dim = heads
    pages = Pages(bench, lengths, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    query = bench.normal(len(lengths), num_heads, head_dim, dtype=dtype, seed=2)
    scale, divided = head_dim**-0.5, pages.parts(num_heads, dtype, masks.window)
    found = decode_attention(query, pages.cache, pages.tables, divided, scale=scale, softcap=masks.softcap)
    parts = torch.split(query, 1)
    rows = [exact.attention(part, *pages.of(row), scale=scale, **masks._asdict()) for row, part in enumerate(parts)]
    return found, torch.cat(rows)


def _prefill(bench: Bench, chunks: Chunks, heads: Heads, dtype: torch.dtype, masks: Masks) -> Pair:
    num_heads, num_kv_heads, head_dim = heads
    num_new = np.array([new for _, new in chunks])
    ends = np.cumsum(num_new)
    pages = Pages(bench, [sum(chunk) for chunk in chunks], num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    query = bench.normal(int(ends[-1]), num_heads, head_dim, dtype=dtype, seed=2)
    first = bench.accelerator.upload(np.array([0, *ends], np.int32))
    block_rows = prefill_block_rows(head_dim, dtype, dtype, query.device)
    num_before = np.array([before for before, _ in chunks])
    tiles = bench.accelerator.upload(tiles_of(num_new, num_heads // num_kv_heads, block_rows, num_before))
    scale = head_dim**-0.5
    places = (query, pages.cache, pages.tables, first, pages.num_keys, tiles)
    found = prefill_attention(*places, scale=scale, block_rows=block_rows, **masks._asdict())
    parts = torch.split(query, num_new.tolist())
    rows = [exact.attention(part, *pages.of(row), scale=scale, **masks._asdict()) for row, part in enumerate(parts)]
    return found, torch.cat(rows)
