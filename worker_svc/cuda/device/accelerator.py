"""Accelerator: the operations that differ between a CUDA device and host memory under Triton's interpreter.

These are copies to and from the device, copies on a second stream, graphs, and the amount of memory. The rest of a step
consists of tensors and kernels and is the same for both.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch

from tetrad.worker_svc.layers.rendezvous import Rendezvous


class Download(Protocol):
    """Tensors that are being copied to the host."""

    def wait(self) -> list[np.ndarray]:
        """Wait for the copy and return the values, in the order of the tensors; safe on any thread."""


class Graph(Protocol):
    """Recorded work that can be run again."""

    def replay(self) -> None:
        """Queue the recorded work again, on the same tensors."""


class Mark(Protocol):
    """A point in the second stream's queue; see `Accelerator.beside`."""


class Accelerator(Protocol):
    """A device that one thread uses."""

    device: torch.device
    num_processors: int
    """Number of streaming multiprocessors."""
    has_fp8: bool
    """Whether the hardware can multiply float8_e4m3fn."""

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """Copy values to the device without waiting; the caller may change `values` afterwards."""

    def upload_into(self, target: torch.Tensor, values: np.ndarray) -> None:
        """Write values [n, ...] to the first n entries of a tensor on the device, without waiting."""

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Queue a copy of tensors to the host; only work that is queued later may change the tensors."""

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return host memory [size_bytes] uint8 that can be copied to and from the device without waiting."""

    def beside(self, work: Callable[[], None]) -> Mark:
        """Queue `work` on a second stream, after all work that is queued so far on both streams; steps continue meanwhile.

        `work` must not allocate device memory. Before a step or a recording ends, it has to wait for all its marks.
        """

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the memory of tensors, which `apart` has written, until the work that is queued so far has read it."""

    def apart(self) -> AbstractContextManager[None]:
        """Queue the work of this context on the calling thread's stream of its own, and wait for it at the end.

        Steps continue meanwhile. Raises the device's error if the work fails.
        """

    def wait_for(self, mark: Mark) -> None:
        """Make work that is queued from now on wait for the second stream up to a mark; the host does not wait."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """Run `work` and record it; it must not allocate memory that is used after it, and must not read host memory."""

    def memory(self) -> tuple[int, int]:
        """Return (free bytes, total bytes) of the device."""

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Run `work`, wait for its end, and return the largest number of bytes that it allocated."""

    def give_back_memory(self) -> None:
        """Return freed memory to the device; graphs that are recorded later share no memory with earlier ones."""

    def process_group(self, met: Rendezvous, name: str, group: Any, timeout_s: float, use: Callable[[Any], None]) -> Any:
        """Return torch's process group for tensors on the device; all ranks call this together.

        Args:
            met: the meeting point of the ranks.
            name: name of the process group.
            group: the ranks' process group for tensors in host memory.
            timeout_s: longest wait for another rank, in seconds.
            use: see Rendezvous.connect_devices.

        Raises Unavailable or DeadlineExceeded if the ranks do not reach each other.
        """

    def check(self) -> None:
        """Wait for all queued work; raise RuntimeError if the device's context is lost, so that every later call fails too."""


class CudaAccelerator:
    """A CUDA device; see Accelerator. It becomes the current device of the creating thread.

    Args:
        index: index of the device.
    """

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self.num_processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.has_fp8 = torch.cuda.get_device_capability(self.device) >= (8, 9)
        # The same streams during the whole lifetime: libraries keep a workspace for every stream that was ever used.
        self._copies, self._rehearsals, self._apart = (
            torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call] # torch leaves it bare
            for _ in range(3)
        )
        self._graph_memory = torch.cuda.MemPool()

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """See Accelerator; copies from pinned memory."""
        # torch keeps pinned memory until the copy that reads it is done.
        return _pinned(values).to(self.device, non_blocking=True)

    def upload_into(self, target: torch.Tensor, values: np.ndarray) -> None:
        """Write values to the first entries of a tensor."""
        target[: len(values)].copy_(_pinned(values), non_blocking=True)

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Queue a copy of tensors to pinned memory."""
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
        """Queue work on the second stream; within a recording, it becomes a branch of the graph."""
        self._copies.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._copies):
            work()
        mark: Mark = self._copies.record_event()
        return mark

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """See Accelerator; torch's allocator would reuse the memory on the stream that it belongs to."""
        for tensor in tensors:
            tensor.record_stream(torch.cuda.current_stream(self.device))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """See Accelerator; the work begins after what is queued so far, such as weights that wake up."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._apart):
            self._apart.wait_stream(torch.cuda.default_stream(self.device))
            yield
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call] # likewise
            done.record()
        done.synchronize()

    def wait_for(self, mark: Mark) -> None:
        """Make the current stream wait for the mark."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self.device).wait_event(mark)

    def capture(self, work: Callable[[], None]) -> Graph:
        """Run `work` twice, since a first run compiles and allocates, then record it; graphs share their memory."""
        self._rehearsals.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._rehearsals):
            work()
            work()
        torch.cuda.current_stream(self.device).wait_stream(self._rehearsals)
        graph = torch.cuda.CUDAGraph()
        # Threads of NCCL and of the results' reader query the device meanwhile; in the default mode that ends a recording.
        pool: Any = self._graph_memory.id  # torch's own type of it is another one
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            work()
        return graph

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes; memory in torch's cache counts as free."""
        free, total = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept, total

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """See Accelerator; torch memory that was allocated before is not counted."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        work()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before

    def give_back_memory(self) -> None:
        """Empty torch's caches."""
        torch.cuda.empty_cache()
        # A pool whose graphs were deleted cannot be used for captures again.
        self._graph_memory = torch.cuda.MemPool()

    def process_group(self, met: Rendezvous, name: str, group: Any, timeout_s: float, use: Callable[[Any], None]) -> Any:
        """Return a process group of NCCL."""
        return met.connect_devices(name, group.rank(), group.size(), timeout_s, use)

    def check(self) -> None:
        """Synchronize with the device. This allocates no memory, so it succeeds after a step that ran out of memory."""
        torch.cuda.synchronize(self.device)


class _CudaDownload:
    def __init__(self, copies: list[torch.Tensor], done: torch.cuda.Event) -> None:
        self._copies, self._done = copies, done

    def wait(self) -> list[np.ndarray]:
        self._done.synchronize()
        return [copy.numpy() for copy in self._copies]


class HostAccelerator:
    """Host memory used as a device; for tests, with TRITON_INTERPRET=1.

    Args:
        num_processors: simulated number of processors.
        memory_bytes: simulated size of the memory.
    """

    def __init__(self, num_processors: int = 4, memory_bytes: int = 1 << 30) -> None:
        self.device = torch.device("cpu")
        self.num_processors, self.has_fp8 = num_processors, True
        self._memory_bytes = memory_bytes

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """Return a copy of the values."""
        return torch.from_numpy(values.copy())

    def upload_into(self, target: torch.Tensor, values: np.ndarray) -> None:
        """Write values to the first entries of a tensor."""
        target[: len(values)].copy_(torch.from_numpy(values))

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Copy tensors immediately: a device's copy also has the values from the time of queuing."""
        return _HostDownload([tensor.clone() for tensor in tensors])

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return host memory."""
        return torch.empty(size_bytes, dtype=torch.uint8)

    def beside(self, work: Callable[[], None]) -> Mark:
        """Run the work immediately."""
        work()
        return _Past()

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Do nothing: all work has ended."""

    def apart(self) -> AbstractContextManager[None]:
        """Run the work immediately."""
        return nullcontext()

    def wait_for(self, mark: Mark) -> None:
        """Do nothing: all work has ended."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """Run the work; a replay runs it again."""
        work()
        return _HostGraph(work)

    def memory(self) -> tuple[int, int]:
        """Return the simulated memory, all of it free."""
        return self._memory_bytes, self._memory_bytes

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Run the work and return 0: it uses no device memory."""
        work()
        return 0

    def give_back_memory(self) -> None:
        """Do nothing: the allocator manages host memory."""

    def process_group(self, met: Rendezvous, name: str, group: Any, timeout_s: float, use: Callable[[Any], None]) -> Any:  # noqa: ARG002
        """Return the process group for host memory, which is connected."""
        return group

    def check(self) -> None:
        """Do nothing: host memory has no device context that could be lost."""


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
