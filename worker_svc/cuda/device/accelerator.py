"""Accelerator: the calls in which a CUDA device differs from host memory under Triton's interpreter.

Copies to and from the device, copies on a second stream, graphs, and the amount of memory. The rest of a step is tensors and
kernels, the same for both.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch


class Download(Protocol):
    """Values on their way to the host."""

    def wait(self) -> list[np.ndarray]:
        """Return them, in the order in which they were asked for; may be called from any thread."""


class Graph(Protocol):
    """Work that was recorded once."""

    def replay(self) -> None:
        """Queue it again, on the same tensors."""


class Mark(Protocol):
    """A place in what is queued beside the steps; see `Accelerator.beside`."""


class Accelerator(Protocol):
    """One device, used by one thread."""

    device: torch.device
    num_processors: int
    """Streaming multiprocessors."""
    has_fp8: bool
    """Whether products of float8_e4m3fn are the hardware's."""

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """Return the values on the device, without waiting; `values` may be written again at once."""

    def upload_into(self, target: torch.Tensor, values: np.ndarray) -> None:
        """Write values [n, ...] to the first n entries of a tensor on the device, without waiting."""

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Begin to copy tensors to the host; they must not be written before later work of the same step."""

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return [size_bytes] uint8 of host memory that is copied to and from the device without waiting."""

    def beside(self, work: Callable[[], None]) -> Mark:
        """Queue `work` behind all that is queued so far and what went this way before; the steps go on meanwhile.

        It allocates nothing on the device. Before a step or a recording ends it has to wait for all its marks.
        """

    def wait_for(self, mark: Mark) -> None:
        """Let what is queued from now on wait for what was queued beside, up to a mark; the host does not wait."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """Run `work`, which allocates nothing that outlives it and reads nothing of the host, and record it."""

    def memory(self) -> tuple[int, int]:
        """Return the bytes that are free and those that there are, on the device."""

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Run `work` to its end and return the most memory that it took."""

    def give_back_memory(self) -> None:
        """Return to the device what was freed; graphs that are recorded from here on share no memory with those before."""

    def check(self) -> None:
        """Wait for all that is queued; RuntimeError if the device's context is lost and every later call fails, too."""


class CudaAccelerator:
    """See Accelerator; becomes the current device of the thread that makes it.

    Args:
        index: of the device.
    """

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self.num_processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.has_fp8 = torch.cuda.get_device_capability(self.device) >= (8, 9)
        # Two for as long as the device is used: the libraries keep workspaces for every stream that they have seen.
        self._copies, self._rehearsals = (
            torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call] # torch leaves it bare
            for _ in range(2)
        )
        self._graph_memory = torch.cuda.graph_pool_handle()

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """Return the values on the device."""
        # torch keeps pinned memory until the copy that reads it is done.
        return _pinned(values).to(self.device, non_blocking=True)

    def upload_into(self, target: torch.Tensor, values: np.ndarray) -> None:
        """Write values to the first entries of a tensor."""
        target[: len(values)].copy_(_pinned(values), non_blocking=True)

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Begin to copy tensors to pinned memory."""
        copies = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call] # likewise
        done.record()
        return _CudaDownload(copies, done)

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return pinned memory; torch rounds its size up to a power of two."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def beside(self, work: Callable[[], None]) -> Mark:
        """Run on a second stream; within a recording this is a branch of the graph."""
        self._copies.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._copies):
            work()
        mark: Mark = self._copies.record_event()
        return mark

    def wait_for(self, mark: Mark) -> None:
        """Let the current stream wait."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self.device).wait_event(mark)

    def capture(self, work: Callable[[], None]) -> Graph:
        """Run twice, since a first run compiles and allocates, then record; graphs share their memory."""
        self._rehearsals.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._rehearsals):
            work()
            work()
        torch.cuda.current_stream(self.device).wait_stream(self._rehearsals)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_memory):
            work()
        return graph

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes."""
        # Memory cached by torch counts as free.
        free, total = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept, total

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Run and wait; other torch memory of the process is not counted."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        work()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before

    def give_back_memory(self) -> None:
        """Empty torch's caches."""
        torch.cuda.empty_cache()
        # A pool whose graphs are gone cannot be captured into again.
        self._graph_memory = torch.cuda.graph_pool_handle()

    def check(self) -> None:
        """Synchronize: it allocates nothing, so it succeeds behind a step that ran out of memory."""
        torch.cuda.synchronize(self.device)


class _CudaDownload:
    def __init__(self, copies: list[torch.Tensor], done: torch.cuda.Event) -> None:
        self._copies, self._done = copies, done

    def wait(self) -> list[np.ndarray]:
        self._done.synchronize()
        return [copy.numpy() for copy in self._copies]


class HostAccelerator:
    """Host memory in the place of a device; for tests, with TRITON_INTERPRET=1.

    Args:
        num_processors: that it pretends to have.
        memory_bytes: that it pretends to have.
    """

    def __init__(self, num_processors: int = 4, memory_bytes: int = 1 << 30) -> None:
        self.device = torch.device("cpu")
        self.num_processors, self.has_fp8 = num_processors, True
        self._memory_bytes = memory_bytes

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """Return a copy."""
        return torch.from_numpy(values.copy())

    def upload_into(self, target: torch.Tensor, values: np.ndarray) -> None:
        """Write values to the first entries of a tensor."""
        target[: len(values)].copy_(torch.from_numpy(values))

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Copy at once, as a device's copy shows what was there when it was queued."""
        return _HostDownload([tensor.clone() for tensor in tensors])

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return host memory."""
        return torch.empty(size_bytes, dtype=torch.uint8)

    def beside(self, work: Callable[[], None]) -> Mark:
        """Run at once, as the fastest of devices would."""
        work()
        return _Past()

    def wait_for(self, mark: Mark) -> None:
        """Do nothing: all is done."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """Run; a replay runs it again."""
        work()
        return _HostGraph(work)

    def memory(self) -> tuple[int, int]:
        """Return the simulated memory, all of it free."""
        return self._memory_bytes, self._memory_bytes

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Run; nothing is counted, as nothing is the device's."""
        work()
        return 0

    def give_back_memory(self) -> None:
        """Do nothing: the allocator does."""

    def check(self) -> None:
        """Do nothing: host memory has no context to lose."""


class _Past:
    pass


class _HostDownload:
    def __init__(self, copies: list[torch.Tensor]) -> None:
        self._copies = copies

    def wait(self) -> list[np.ndarray]:
        return [copy.numpy() for copy in self._copies]


class _HostGraph:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()


def _pinned(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).pin_memory()
