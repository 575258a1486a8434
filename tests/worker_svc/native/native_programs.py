"""Programs of one operation, for tests of the native kernels: a product, attention over pages, and their expected results.

TEST_KERNELS=avx2=/path/to.so tests that library alone, one made with sanitizers for example (docs/kernels.md).
"""

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tetrad.worker_svc.native.library import _declare, best_target, load_library, targets
from tetrad.worker_svc.native.operands import Epilogue, LayerPages
from tetrad.worker_svc.native.program import Pages, Tokens
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.structures import Heads, KvType
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix

NO_HEADS = Heads(1, 1, 16, 1, 0)
NAN_OF_HALVES = 126
"""A byte: two of it are no number in half precision."""
_GIVEN, _, _GIVEN_PATH = os.environ.get("TEST_KERNELS", "").partition("=")
_NUM_TARGETS = None if "TEST_ALL_TARGETS" in os.environ else 2
RUNNABLE = [_GIVEN] if _GIVEN else [target.name for target in targets()[targets().index(best_target()) :]][:_NUM_TARGETS]
"""Targets that this machine runs: the best two in `make test`, all of them in `make test-kernels`."""


def team_of(name: str, num_threads: int = 1) -> Team:
    """Return a team on the kernels of a kind of machine."""
    if not _GIVEN:
        return Team(load_library(next(target for target in targets() if target.name == name)), num_threads)
    library = ctypes.CDLL(_GIVEN_PATH)
    _declare(library)
    return Team(library, num_threads)


def product(
    team: Team,
    matrix: NativeMatrix,
    x: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = Epilogue.STORE,
    target: torch.Tensor | None = None,
    column: int = 0,
    **options: Any,
) -> torch.Tensor:
    """Return what a product makes of `target` [T, width]; without one the target has the product's own width."""
    builder = ProgramBuilder(team)
    out = torch.full((len(x), matrix.num_outputs), torch.nan) if target is None else target.clone()
    source, written = builder.buffer(x.shape[1]), builder.buffer(out.shape[1])
    builder.linear(matrix, bias, source, written, column=column, epilogue=epilogue, **options)
    builder.build("product", NO_HEADS).run(len(x), given={source: x.contiguous(), written: out})
    return out


def from_int8(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return what 8 bits, and a scale in half precision for 32 dimensions of a head, make of rows [T, heads * head_dim]."""
    parts = rows.unflatten(1, (-1, head_dim)).split(32, dim=2)
    scales = [(part.abs().amax(2, keepdim=True) / 127).half().float() for part in parts]
    kept = [(part / scale).round().clamp(-127, 127) * scale for part, scale in zip(parts, scales, strict=True)]
    return torch.cat([part.nan_to_num() for part in kept], dim=2).flatten(1)


@dataclass
class Chunk:
    """`scheduled` tokens of a sequence behind `computed` ones whose keys and values are in its pages.

    The tokens of each of `images` attend to all its tokens.
    """

    computed: int
    scheduled: int
    images: tuple[range, ...] = ()

    @property
    def ends(self) -> np.ndarray:
        """The position behind the last key that each scheduled token attends to."""
        ends = np.arange(self.computed + self.scheduled) + 1
        for image in self.images:
            ends[image.start : image.stop] = image.stop
        return ends[self.computed :]


class PagedAttention:
    """Sequences with random keys and values in scattered pages, in the second of two KV groups; unused slots hold `unused`.

    In 8 bits it is bytes that make a scale of NaN.

    Keys and values get into the pages as in a model: through the operation that rotates and writes. Angles are 0 unless given.
    The layer is the second of two.
    """

    def __init__(
        self,
        team: Team,
        heads: Heads,
        chunks: list[Chunk],
        *,
        unused: float = torch.nan,
        seed: int = 0,
        sinks: torch.Tensor | None = None,
        slopes: torch.Tensor | None = None,
    ) -> None:
        self.team, self.heads, self.chunks, self.sinks, self.slopes = team, heads, chunks, sinks, slopes
        self._random = torch.Generator().manual_seed(seed)
        width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
        self.rows = [torch.randn(chunk.computed + chunk.scheduled, width, generator=self._random) for chunk in chunks]
        self.dtype = {KvType.FLOAT32: torch.float32, KvType.FLOAT16: torch.float16, KvType.INT8: torch.int8}[heads.kv_type]
        is_int8 = self.dtype == torch.int8
        for rows in self.rows:  # what is expected knows what fewer bits make of keys and values
            kept = rows[:, heads.num_heads * heads.head_dim :]
            kept[:] = from_int8(kept, heads.head_dim) if is_int8 else kept.to(self.dtype)
        pages_of = [-(-(chunk.computed + chunk.scheduled) // heads.block_size) for chunk in chunks]
        shuffled = torch.randperm(sum(pages_of) + 2, generator=self._random).to(torch.int32).split([*pages_of, 2])
        self.tables = np.full((len(chunks), max(pages_of)), 2**31 - 1, np.int32)
        for row, pages in enumerate(shuffled[:-1]):
            self.tables[row, : len(pages)] = pages
        scales_bytes = 2 * -(-heads.head_dim // 32) if is_int8 else 0
        size = 2 * heads.num_kv_heads * heads.block_size * (heads.head_dim + scales_bytes)
        unused = NAN_OF_HALVES if is_int8 else unused
        self._first_layer, self.cache = torch.full((sum(pages_of) + 2, 2, size), unused, dtype=self.dtype).unbind(1)
        builder = ProgramBuilder(team)
        self._heads, self._attended = builder.buffer(width), builder.buffer(heads.num_heads * heads.head_dim)
        layer = LayerPages(place=1, group=1, window=heads.window)
        builder.rotate(layer, self._heads)
        self._writing = builder.build("write", heads)
        builder.attend(layer, self._heads, self._attended, sinks=sinks, slopes=slopes)
        self._attending = builder.build("attend", heads)

    def run(self) -> list[torch.Tensor]:
        """Return each chunk's attention [scheduled, num_heads * head_dim]."""
        computed = [Chunk(0, chunk.computed) for chunk in self.chunks]
        self._step(self._writing, computed)
        return list(self._step(self._attending, self.chunks).split([chunk.scheduled for chunk in self.chunks]))

    def _step(self, program, chunks: list[Chunk]) -> torch.Tensor:
        rows = [row[chunk.computed : chunk.computed + chunk.scheduled] for row, chunk in zip(self.rows, chunks, strict=True)]
        given = torch.cat(rows).contiguous()
        attended = torch.full((len(given), self.heads.num_heads * self.heads.head_dim), torch.nan)
        size, counts = self.heads.block_size, [chunk.scheduled for chunk in chunks]
        positions = [np.arange(chunk.computed, chunk.computed + chunk.scheduled) for chunk in chunks]
        pages = [table[at // size].astype(np.int64) for table, at in zip(self.tables, positions, strict=True)]
        slots = [page * size + at % size for page, at in zip(pages, positions, strict=True)]
        num_positions = max(chunk.computed + chunk.scheduled for chunk in chunks)
        turns = torch.tensor([1.0, 0.0]).repeat_interleave(self.heads.head_dim // 2).repeat(num_positions, 1)
        program.run(
            len(given),
            Tokens(np.zeros(len(given), np.int64), np.concatenate(positions), [turns], self._first_layer),
            Pages(
                slots=np.stack([np.full(len(given), 2**62), np.concatenate(slots)]),
                tables=np.stack([np.full_like(self.tables, 2**31 - 1), self.tables]),
                first_tokens=np.cumsum([0, *counts[:-1]]),
                num_computed=np.array([chunk.computed for chunk in chunks]),
                num_scheduled=np.array(counts),
                block_size=size,
                num_positions=num_positions,
                ends=np.concatenate([chunk.ends for chunk in chunks]) if any(chunk.images for chunk in chunks) else None,
            ),
            given={self._heads: given, self._attended: attended},
        )
        return attended

    def expected(self) -> list[torch.Tensor]:
        """Return the same in float64 by torch."""
        return [self._expected(rows.double(), chunk) for rows, chunk in zip(self.rows, self.chunks, strict=True)]

    def _expected(self, rows: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        heads = self.heads
        parts = rows.split([n * heads.head_dim for n in (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)], dim=1)
        queries, keys, values = (part.unflatten(1, (-1, heads.head_dim)).transpose(0, 1) for part in parts)
        at = torch.arange(len(rows))
        queries, row_at = queries[:, chunk.computed :], at[chunk.computed :, None]
        mask = at[None] < torch.from_numpy(chunk.ends)[:, None]
        if heads.window:
            mask &= at[None] > row_at - heads.window
        keys, values = (part.repeat_interleave(heads.num_heads // heads.num_kv_heads, dim=0) for part in (keys, values))
        scores = queries @ keys.transpose(1, 2) * (heads.scale or heads.head_dim**-0.5)
        if heads.softcap:
            scores = heads.softcap * torch.tanh(scores / heads.softcap)
        if self.slopes is not None:
            scores = scores + self.slopes.double().view(-1, 1, 1) * (at[None] - row_at)
        scores = scores.masked_fill(~mask, -torch.inf)
        if self.sinks is not None:
            sinks = self.sinks.double().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
            return (torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ values).transpose(0, 1).flatten(1)
        weights = scores.softmax(-1)
        return (weights @ values).transpose(0, 1).flatten(1)
