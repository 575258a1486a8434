"""Program: a forward pass built by program_builder.py, which the team of C++ threads runs in every step."""

import ctypes
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd import profiler

from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.native.memory import aligned_zeros
from tetrad.worker_svc.native.program_sums import NoSums, ProgramSums
from tetrad.worker_svc.native.structures import Heads, Operation, Step, Storage
from tetrad.worker_svc.native.team import Team

_SPLIT_ROWS = 32
"""Number of rows that products of split matrices read at once, padding included; the same value as in src/matmul_split.h."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The T tokens of a step. A run without tokens can only have norms and products."""

    token_ids: npt.NDArray[np.int64]  # [T]
    positions: npt.NDArray[np.int64]  # [T]
    turns: Sequence[torch.Tensor]  # tables [rows, R] float32: for each position, R / 2 cosines and R / 2 sines
    cache: torch.Tensor  # the first layer's pages; each is followed by the pages of the other layers
    embeddings: npt.NDArray[np.uint64] | None = None  # [T], addresses of embeddings that replace the table's rows; 0: none
    deep: npt.NDArray[np.uint64] | None = None  # [L, T], addresses of rows that are added behind the first layers; 0: none
    turn_rows: npt.NDArray[np.int64] | None = None  # [T], rows of the tables in `turns`; None: `positions`


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of the T rows of a run: the address of each row's table of sites (0: none), and a site's largest rank."""

    tables: npt.NDArray[np.uint64]  # [T]
    rank: int


@dataclass(frozen=True, slots=True)
class Pages:
    """The places of a step's R sequences: of their keys and values, and of their tokens on the axes of M-RoPE."""

    slots: npt.NDArray[np.int64]  # [G, T], page * block_size + offset; G KV groups
    tables: npt.NDArray[np.int32]  # [G, R, pages]
    first_tokens: npt.NDArray[np.int64]  # [R]
    num_computed: npt.NDArray[np.int64]  # [R]
    num_scheduled: npt.NDArray[np.int64]  # [R]
    block_size: int
    num_positions: int  # length of the longest sequence, this step's tokens included
    axes: npt.NDArray[np.int64] | None = None  # [3, T], see StepInputs
    ends: npt.NDArray[np.int64] | None = None  # [T], see StepInputs


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """The tokens of R whole prompts, one after another, which are computed without a cache."""

    positions: npt.NDArray[np.int64]  # [T]
    first_tokens: npt.NDArray[np.int64]  # [R]
    lengths: npt.NDArray[np.int64]  # [R]


class Room:
    """Memory for converted inputs that several programs share. It grows to the largest use.

    Attributes:
        lock: held while one of these programs runs. The threads that compute shared experts for other workers
            (layers/expert_server.py) run the same programs as the compute thread.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._bytes = np.empty(0, np.uint8)

    def of(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return memory of at least `size_bytes`, with undefined content; the caller holds the lock."""
        if len(self._bytes) < size_bytes:
            self._bytes = aligned_zeros(size_bytes)
        return self._bytes


class Program:
    """A built program; owned by the compute thread. Its buffers grow to the largest step and are reused."""

    def __init__(
        self,
        name: str,
        team: Team,
        operations: Sequence[Operation],
        widths: Sequence[int],
        heads: Heads,
        kept: Sequence[object],
        sums: ProgramSums = NoSums(),  # noqa: B008 - it has no state
    ) -> None:
        self._name, self._sums = name, sums
        self._team, self._operations, self._widths = team, operations, widths
        self._heads = Heads.from_buffer_copy(heads)
        self._kept = kept
        matrices = [operation for operation in operations if operation.matrix]
        self._prepared_size_bytes = max((_prepared_size_bytes(team, operation) for operation in matrices), default=0)
        self._has_split = any(operation.matrix.contents.storage == Storage.SPLIT for operation in matrices)
        self._buffers: list[npt.NDArray[np.float32]] = []
        self._addresses: ctypes.Array[ctypes.c_void_p] = (ctypes.c_void_p * len(widths))()
        self._prepared = np.empty(0, np.uint8)
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
        adapters: Adapters | None = None,
        packed: PackedTokens | None = None,
    ) -> None:
        """Run all operations.

        Args:
            num_tokens: T, the number of rows in every buffer.
            tokens, pages: the step's tokens, and their places in the KV cache.
            given: buffers that the caller provides, [T, width] float32 contiguous, by buffer number.
            adapters: the adapters of the rows; None: the base model.
            packed: prompts without a cache, instead of `tokens` and `pages`.

        Raises:
            RuntimeError: a sum over ranks failed.
        """
        if tokens is not None and pages is not None:
            self._fit(pages.block_size, tokens.cache.stride(0))
        self._grow(num_tokens)
        addresses = self._addresses
        if given:
            addresses = type(addresses).from_buffer_copy(addresses)
            for number, tensor in given.items():
                addresses[number] = tensor.data_ptr()
        step = _step(num_tokens, tokens, pages) if packed is None else _packed_step(num_tokens, packed)
        if adapters is not None:
            step.adapters, step.adapter_rank = adapters.tables.ctypes.data, adapters.rank
        check = self._sums.begin(step)
        with self._span():
            status = self._team.library.tetrad_run(
                self._team.handle, self._handle, ctypes.byref(step), addresses, self._prepared.ctypes.data
            )
        check(status)

    def run_on(self, buffers: Sequence[torch.Tensor], room: Room) -> None:
        """Run all operations, norms and products, on buffers [T, width] float32 contiguous that the caller provides.

        Several threads may call this; all calls with one `room` run one after another.

        Args:
            buffers: all buffers of the program.
            room: memory for converted inputs.
        """
        num_tokens = len(buffers[0])
        addresses = (ctypes.c_void_p * len(buffers))(*(buffer.data_ptr() for buffer in buffers))
        with room.lock, self._span():
            prepared = room.of(self._prepared_bytes(num_tokens))
            self._team.library.tetrad_run(
                self._team.handle, self._handle, ctypes.byref(Step(num_tokens=num_tokens)), addresses, prepared.ctypes.data
            )

    def result(self, buffer: int, num_tokens: int) -> torch.Tensor:
        """Return a buffer [T, width]; its content is valid until the next run."""
        return torch.from_numpy(self._buffers[buffer][:num_tokens])

    def top(self, buffer: int, num_tokens: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the indices [T] and values [T] of the largest outputs of a product with Epilogue.TOP.

        Among equal outputs, the one with the lowest index counts; among NaN, the first.
        """
        rows, num_spans = self._buffers[buffer][:num_tokens], self._widths[buffer] // 2
        spans, largest = argmax(torch.from_numpy(rows[:, :num_spans]))
        indices = rows[:, num_spans:].view(np.int32)
        return indices[np.arange(num_tokens), spans].astype(np.int64), largest

    def _span(self) -> AbstractContextManager[object]:
        # record_function takes a tenth of the time between two steps, even without a profiler.
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
        self._finalizer.atexit = False  # a step may be running

    def _grow(self, num_tokens: int) -> None:
        if num_tokens <= self._room:
            return
        self._buffers = [np.empty((num_tokens, width), np.float32) for width in self._widths]
        self._addresses = (ctypes.c_void_p * len(self._widths))(*(buffer.ctypes.data for buffer in self._buffers))
        self._prepared = aligned_zeros(self._prepared_bytes(num_tokens))
        self._room = num_tokens  # last: after a failed allocation, the next step must not write behind smaller buffers

    def _prepared_bytes(self, num_tokens: int) -> int:
        return (num_tokens + (_SPLIT_ROWS if self._has_split else 0)) * self._prepared_size_bytes


def _prepared_size_bytes(team: Team, operation: Operation) -> int:
    """Return the bytes of a token's inputs in the form that the products of an operation's matrix read."""
    row_bytes: int = team.library.tetrad_prepared_size_bytes(operation.matrix)
    return row_bytes * operation.routing.contents.num_chosen if operation.is_by_place else row_bytes


def _packed_step(num_tokens: int, packed: PackedTokens) -> Step:
    step = Step(num_tokens=num_tokens, num_sequences=len(packed.lengths))
    step.positions, step.first_tokens = packed.positions.ctypes.data, packed.first_tokens.ctypes.data
    step.num_scheduled = packed.lengths.ctypes.data
    return step


def _step(num_tokens: int, tokens: Tokens | None, pages: Pages | None) -> Step:
    step = Step(num_tokens=num_tokens)
    if tokens is not None:
        step.token_ids = tokens.token_ids.ctypes.data
        step.positions = step.turn_rows = tokens.positions.ctypes.data
        if tokens.turn_rows is not None:
            step.turn_rows = tokens.turn_rows.ctypes.data
        # The structure holds a reference to the array.
        step.turns = (ctypes.c_void_p * len(tokens.turns))(*(table.data_ptr() for table in tokens.turns))
        step.cache = tokens.cache.data_ptr()
        if tokens.embeddings is not None:
            step.embeddings = tokens.embeddings.ctypes.data
        if tokens.deep is not None:
            step.deep = tokens.deep.ctypes.data
    if pages is not None:
        _, step.num_sequences, step.table_stride = pages.tables.shape
        step.slots, step.pages = pages.slots.ctypes.data, pages.tables.ctypes.data
        step.first_tokens = pages.first_tokens.ctypes.data
        if pages.ends is not None:
            step.ends = pages.ends.ctypes.data
        step.num_computed, step.num_scheduled = pages.num_computed.ctypes.data, pages.num_scheduled.ctypes.data
    return step
