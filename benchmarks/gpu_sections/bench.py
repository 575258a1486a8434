"""Bench: the device that a section measures, the measurement of times, and the section's remaining time.

On a GPU, work is recorded as a graph and the GPU itself times the replays, so that figures do not include Python's launch time.
On the host, kernels are interpreted and times mean nothing: such a run only checks the script.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.gpu_sections.findings import file_name_of
from benchmarks.options import Options
from tetrad.worker_svc.cuda.device.accelerator import Accelerator, CudaAccelerator, HostAccelerator

Work = Callable[[], object]
T = TypeVar("T")

_ROUNDS = 5
_ROUND_S = 0.02
_MOST_REPLAYS = 1000


@dataclass(frozen=True)
class Bench:
    """The arguments of a section.

    Attributes:
        accelerator: the device.
        options: directory of pictures, and whether sizes are tiny.
        limit_s: time limit of the section in seconds.
        weights: a .gguf file or a directory with a real model; None: the model in the cache.
        started_s: start of the section on the clock of time.monotonic.
    """

    accelerator: Accelerator
    options: Options
    limit_s: float
    weights: Path | None = None
    started_s: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> torch.device:
        """The torch device of tensors."""
        return self.accelerator.device

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU, so that times are meaningful."""
        return self.device.type == "cuda"

    @property
    def name(self) -> str:
        """The card's name; "host" without a GPU."""
        return torch.cuda.get_device_name(self.device) if self.is_gpu else "host"

    @property
    def file_name(self) -> str:
        """The card's name as a file name: NVIDIA H200 -> nvidia_h200."""
        return file_name_of(self.name)

    @property
    def remaining_s(self) -> float:
        """The seconds until the section's time limit."""
        return self.limit_s - (time.monotonic() - self.started_s)

    def pick(self, full: T, tiny: T) -> T:
        """Return the size to run: `tiny` in a quick run, which only checks that the code runs."""
        return tiny if self.options.quick else full

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
        """Return a tensor of N(0, 1) on the device, determined by the seed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=self.device).to(dtype)

    def seconds(self, works: Sequence[Work], *, is_brief: bool = False) -> float:
        """Return the seconds that one of the works takes, the median over rounds.

        With several works, which do the same with different tensors, the card's L2 cache cannot hold all tensors. All works
        together are one graph. They must not wait for the device.

        Args:
            works: one or more.
            is_brief: measure for a tenth of the time, to compare many.
        """
        if not self.is_gpu:
            return self._host_seconds(works) / len(works)
        return self._graph_seconds(works, _ROUND_S / (10 if is_brief else 1)) / len(works)

    def wait(self) -> None:
        """Wait until the device is idle."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def _graph_seconds(self, works: Sequence[Work], round_s: float) -> float:
        graph = self.accelerator.capture(lambda: _run_all(works))
        once = self._replay_seconds(graph.replay, 1)
        replays = max(1, min(_MOST_REPLAYS, int(round_s / max(once, 1e-6))))
        return statistics.median(self._replay_seconds(graph.replay, replays) for _ in range(_ROUNDS))

    def _replay_seconds(self, replay: Work, replays: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch has no types for events
        replay()
        start.record()
        for _ in range(replays):
            replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / replays

    def _host_seconds(self, works: Sequence[Work]) -> float:
        started = time.perf_counter()
        _run_all(works)
        return time.perf_counter() - started


def open_bench(device: str, options: Options, limit_s: float, weights: Path | None = None) -> Bench:
    """Return the bench on "cuda" or "host"; RuntimeError if the device is missing."""
    if device == "host":
        return Bench(HostAccelerator(), options, limit_s, weights)
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device; --device host runs tiny shapes without one")
    return Bench(CudaAccelerator(), options, limit_s, weights)


def _run_all(works: Sequence[Work]) -> None:
    for work in works:
        work()
