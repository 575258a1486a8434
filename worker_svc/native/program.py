"""Program: a forward pass as a list of operations over numbered buffers, written once and run every step by the C++ team.

A buffer is a matrix with one row for each token of the step; an operation reads one and writes one. Activations that go into a
quantized matrix are quantized on the way: by the norm before it, or by the product itself.
"""

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd import profiler

from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.native.structures import Heads, Operation, Step
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix


class _Kind(IntEnum):
    EMBED = 0
    NORM = 1
    LINEAR = 2
    ROTATE = 3
    ATTEND = 4


class Epilogue(IntEnum):
    """What becomes of a product: it is stored, added to what is there, or, of a paired matrix, silu(gate) * up is stored.

    TOP stores only the largest output of each of the matrix's S spans, and its index: target [T, 2 S], see Program.top.
    """

    STORE = 0
    ADD = 1
    GATE = 2
    TOP = 3


@dataclass(frozen=True, slots=True)
class Tokens:
    """The T tokens of a step. Without them a program may only have norms and products."""

    token_ids: npt.NDArray[np.int64]  # [T]
    positions: npt.NDArray[np.int64]  # [T]
    turns: torch.Tensor  # [positions, R] float32: of each, R / 2 cosines and as many sines
    cache: torch.Tensor  # the first layer's pages; behind each of them are those of the other layers


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the R sequences of a step have their keys and values."""

    slots: npt.NDArray[np.int64]  # [T], page * block_size + offset
    tables: npt.NDArray[np.int32]  # [R, pages]
    first_tokens: npt.NDArray[np.int64]  # [R]
    num_computed: npt.NDArray[np.int64]  # [R]
    num_scheduled: npt.NDArray[np.int64]  # [R]
    block_size: int
    num_positions: int  # of the longest sequence, this step's tokens included


class ProgramBuilder:
    """Writes a program, operation by operation.

    Args:
        team: that will run it.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._operations: list[Operation] = []
        self._widths: list[int] = []
        self._kept: list[object] = []  # what operations point at

    def buffer(self, width: int) -> int:
        """Return the number of a new buffer with `width` columns."""
        self._widths.append(width)
        return len(self._widths) - 1

    def embed(self, matrix: NativeMatrix, target: int) -> None:
        """target = rows of the matrix, by token id."""
        self._append(_Kind.EMBED, target=target, matrix=self._pointer(matrix))

    def norm(self, weight: torch.Tensor, eps: float, source: int, target: int, *, quantize: bool = False) -> None:
        """target = RMSNorm of source; quantized as well if something behind takes that."""
        self._append(_Kind.NORM, source=source, target=target, eps=eps, first=self._floats(weight), quantize=quantize)

    def linear(
        self,
        matrix: NativeMatrix,
        bias: torch.Tensor | None,
        source: int,
        target: int,
        *,
        column: int = 0,
        epilogue: Epilogue = Epilogue.STORE,
        source_is_quantized: bool = False,
    ) -> None:
        """Columns `column` .. of target = matrix times source, plus bias."""
        self._append(
            _Kind.LINEAR,
            source=source,
            target=target,
            column=column,
            epilogue=epilogue,
            matrix=self._pointer(matrix),
            first=self._floats(bias),
            quantize=source_is_quantized,
        )

    def rotate(self, layer: int, heads: int, norms: tuple[torch.Tensor, torch.Tensor] | None, eps: float) -> None:
        """Norm and rotate queries and keys [q | k | v] in place, and write keys and values into the layer's cache."""
        query, key = norms or (None, None)
        first, second = self._floats(query), self._floats(key)
        self._append(_Kind.ROTATE, layer=layer, source=heads, target=heads, eps=eps, first=first, second=second)

    def attend(self, layer: int, heads: int, target: int) -> None:
        """target = attention of the queries to the layer's cache."""
        self._append(_Kind.ATTEND, layer=layer, source=heads, target=target)

    def build(self, name: str, heads: Heads) -> "Program":
        """Return the program; its runs have this name in a profile."""
        return Program(name, self._team, list(self._operations), list(self._widths), heads, list(self._kept))

    def _append(self, kind: _Kind, **fields: object) -> None:
        self._operations.append(Operation(kind=kind, **fields))

    def _pointer(self, matrix: NativeMatrix) -> object:
        self._kept.append(matrix)
        return ctypes.pointer(matrix.fields)

    def _floats(self, values: torch.Tensor | None) -> int | None:
        if values is None:
            return None
        values = values.float().contiguous()
        self._kept.append(values)
        return values.data_ptr()


class Program:
    """What ProgramBuilder wrote; owned by the compute thread. Its buffers grow to the largest step and are used again."""

    def __init__(
        self,
        name: str,
        team: Team,
        operations: Sequence[Operation],
        widths: Sequence[int],
        heads: Heads,
        kept: Sequence[object],
    ) -> None:
        self._name = name
        self._team, self._operations, self._widths = team, operations, widths
        self._heads = Heads.from_buffer_copy(heads)
        self._kept = kept
        self._most_columns = max((op.matrix.contents.columns for op in operations if op.matrix), default=0)
        self._buffers: list[npt.NDArray[np.float32]] = []
        self._addresses: ctypes.Array[ctypes.c_void_p] = (ctypes.c_void_p * len(widths))()
        self._quantized = np.empty(0, np.uint8)
        self._room = 0
        self._handle = 0
        self._finalizer: weakref.finalize[..., Program] | None = None
        self._make()

    def run(
        self,
        num_tokens: int,
        tokens: Tokens | None = None,
        pages: Pages | None = None,
        given: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """Run all operations.

        Args:
            num_tokens: T, rows of every buffer.
            tokens, pages: of the step.
            given: buffers that the caller brings, [T, width] float32 contiguous.
        """
        if tokens is not None and pages is not None:
            self._fit(pages.block_size, tokens.cache.stride(0))
        self._grow(num_tokens)
        addresses = self._addresses
        if given:
            addresses = type(addresses).from_buffer_copy(addresses)
            for number, tensor in given.items():
                addresses[number] = tensor.data_ptr()
        step = _step(num_tokens, tokens, pages)
        with self._span():
            self._team.library.tetrad_run(
                self._team.handle, self._handle, ctypes.byref(step), addresses, self._quantized.ctypes.data
            )

    def result(self, buffer: int, num_tokens: int) -> torch.Tensor:
        """Return a buffer [T, width]; valid until the next run."""
        return torch.from_numpy(self._buffers[buffer][:num_tokens])

    def top(self, buffer: int, num_tokens: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the index [T] and the value [T] of the largest outputs of a product that ended in Epilogue.TOP.

        The lowest of equal ones; if any is NaN, the first of those.
        """
        rows, num_spans = self._buffers[buffer][:num_tokens], self._widths[buffer] // 2
        spans, largest = argmax(torch.from_numpy(rows[:, :num_spans]))
        indices = rows[:, num_spans:].view(np.int32)
        return indices[np.arange(num_tokens), spans].astype(np.int64), largest

    def _span(self) -> AbstractContextManager[object]:
        # What torch spends on a name that nobody reads is a tenth of the time between two steps.
        is_profiled = profiler._is_profiler_enabled  # noqa: SLF001 - torch has it for such checks
        return profiler.record_function(self._name) if is_profiled else nullcontext()

    def _fit(self, block_size: int, page_stride: int) -> None:
        heads = self._heads
        if (heads.block_size, heads.page_stride) != (block_size, page_stride):
            num_layers = 1 + max(operation.layer for operation in self._operations)
            least_size = 2 * heads.num_kv_heads * block_size * heads.head_dim
            assert page_stride >= num_layers * least_size, "the pages of a block's layers do not lie together"
            heads.block_size, heads.page_stride = block_size, page_stride
            self._make()

    def _make(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        library = self._team.library
        widths = np.array(self._widths, np.int64)
        operations = (Operation * len(self._operations))(*self._operations)
        self._handle = library.tetrad_program_new(operations, len(operations), widths.ctypes.data, len(widths), self._heads)
        self._finalizer = weakref.finalize(self, library.tetrad_program_delete, self._handle)
        self._finalizer.atexit = False  # a step may be under way

    def _grow(self, num_tokens: int) -> None:
        if num_tokens <= self._room:
            return
        self._room = num_tokens
        self._buffers = [np.empty((num_tokens, width), np.float32) for width in self._widths]
        self._addresses = (ctypes.c_void_p * len(self._widths))(*(buffer.ctypes.data for buffer in self._buffers))
        row_bytes: int = self._team.library.tetrad_activations_size_bytes(self._most_columns)
        self._quantized = np.empty(num_tokens * row_bytes, np.uint8)


def _step(num_tokens: int, tokens: Tokens | None, pages: Pages | None) -> Step:
    step = Step(num_tokens=num_tokens)
    if tokens is not None:
        step.token_ids = tokens.token_ids.ctypes.data
        step.positions, step.turns = tokens.positions.ctypes.data, tokens.turns.data_ptr()
        step.cache = tokens.cache.data_ptr()
    if pages is not None:
        step.num_sequences, step.table_stride = pages.tables.shape
        step.slots, step.pages = pages.slots.ctypes.data, pages.tables.ctypes.data
        step.first_tokens = pages.first_tokens.ctypes.data
        step.num_computed, step.num_scheduled = pages.num_computed.ctypes.data, pages.num_scheduled.ctypes.data
    return step
