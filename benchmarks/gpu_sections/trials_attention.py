"""Trials of attention: launch parameters for 16-bit caches, for the table worker_svc/kernels/attention_launch.json."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch

from benchmarks.gpu_sections.bench import Bench, Work
from benchmarks.gpu_sections.pages import Pages
from benchmarks.gpu_sections.trial import Trial
from tetrad.worker_svc.kernels.attention_launch import Launch
from tetrad.worker_svc.kernels.decode_attention import decode_attention
from tetrad.worker_svc.kernels.prefill_attention import prefill_attention, tiles_of

TABLE = "attention"
_HEADS = {128: (12, 2), 64: (9, 3), 256: (16, 8)}


def trials(bench: Bench) -> Iterator[Trial]:
    """Yield trials of prompts and of decode steps for each head size."""
    sizes = bench.pick(_HEADS, {16: (2, 1)})
    for head_dim, heads in sizes.items():
        rows = product(bench.pick((64, 128), (16,)), (32, 64, 128), (4, 8), (2, 3, 4))
        options = [Launch(*row, None) for row in rows]
        yield Trial(TABLE, f"prefill {head_dim}", _some(bench, options), partial(_prefill, bench, heads, head_dim))
    for head_dim, heads in sizes.items():
        options = [Launch(16, *row, None) for row in product((32, 64, 128), (1, 2, 4), (2, 3, 4))]
        yield Trial(TABLE, f"decode {head_dim}", _some(bench, options), partial(_decode, bench, heads, head_dim))


def _some(bench: Bench, options: Sequence[Launch]) -> Sequence[Launch]:
    return bench.pick(options, options[:2])


def _prefill(bench: Bench, heads: tuple[int, int], head_dim: int, option: Launch) -> Sequence[Work]:
    length = bench.pick(4096, 20)
    dtype = torch.bfloat16 if bench.is_gpu else torch.float16
    pages = Pages(bench, [length], num_kv_heads=heads[1], head_dim=head_dim, dtype=dtype)
    query = bench.normal(length, heads[0], head_dim, dtype=dtype, seed=2)
    first = bench.accelerator.upload(np.array([0, length], np.int32))
    tiles = bench.accelerator.upload(tiles_of(np.array([length]), heads[0] // heads[1], option.block_rows))
    places = (query, pages.cache, pages.tables, first, pages.num_keys, tiles)
    return [partial(prefill_attention, *places, scale=head_dim**-0.5, block_rows=option.block_rows, launch=option)]


def _decode(bench: Bench, heads: tuple[int, int], head_dim: int, option: Launch) -> Sequence[Work]:
    batch, context = bench.pick((64, 2000), (2, 20))
    dtype = torch.bfloat16 if bench.is_gpu else torch.float16
    pages = Pages(bench, [context] * batch, num_kv_heads=heads[1], head_dim=head_dim, dtype=dtype)
    query = bench.normal(batch, heads[0], head_dim, dtype=dtype, seed=2)
    caches = [pages.cache, *(pages.cache.clone() for _ in range(bench.pick(2, 0)))]
    places = (pages.tables, pages.parts(heads[0], dtype))
    return [partial(decode_attention, query, each, *places, scale=head_dim**-0.5, launch=option) for each in caches]
