"""Bench: the device that a section measures, its clock, and its remaining time.

On a GPU work is recorded as a graph and the GPU itself times the replays, so that Python's launch time is not in the figures.
On the host, where kernels are interpreted, times mean nothing: such a run checks the script.
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
        options: where pictures go, and whether sizes are to be tiny.
        limit_s: how long the section may take.
        weights: of a real model, a .gguf file or a directory; None: where the cache has them.
        started_s: when it began, on the clock of time.monotonic.
    """

    accelerator: Accelerator
    options: Options
    limit_s: float
    weights: Path | None = None
    started_s: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> torch.device:
        """Where tensors go."""
        return self.accelerator.device

    @property
    def is_gpu(self) -> bool:
        """Whether times mean something."""
        return self.device.type == "cuda"

    @property
    def name(self) -> str:
        """The card's name, "host" for none."""
        return torch.cuda.get_device_name(self.device) if self.is_gpu else "host"

    @property
    def file_name(self) -> str:
        """The card's name as a file's: NVIDIA H200 -> nvidia_h200."""
        return file_name_of(self.name)

    @property
    def remaining_s(self) -> float:
        """Seconds that the section has left."""
        return self.limit_s - (time.monotonic() - self.started_s)

    def pick(self, full: T, tiny: T) -> T:
        """Return the size to run: `tiny` when all that is to be seen is that it runs."""
        return tiny if self.options.quick else full

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
        """Return N(0, 1) on the device; the same for the same seed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=self.device).to(dtype)

    def seconds(self, works: Sequence[Work], *, is_brief: bool = False) -> float:
        """Return the duration of one of the works, the median over rounds.

        Several works that do the same on tensors of their own keep the card's L2 cache from holding what is to be read;
        together they are one graph. They must not wait for the device.

        Args:
            works: at least one.
            is_brief: measure for a tenth of the time, where many are compared.
        """
        if not self.is_gpu:
            return self._host_seconds(works) / len(works)
        return self._graph_seconds(works, _ROUND_S / (10 if is_brief else 1)) / len(works)

    def wait(self) -> None:
        """Return when the device is idle."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def _graph_seconds(self, works: Sequence[Work], round_s: float) -> float:
        graph = self.accelerator.capture(lambda: _run_all(works))
        once = self._replay_seconds(graph.replay, 1)
        replays = max(1, min(_MOST_REPLAYS, int(round_s / max(once, 1e-6))))
        return statistics.median(self._replay_seconds(graph.replay, replays) for _ in range(_ROUNDS))

    def _replay_seconds(self, replay: Work, replays: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's own
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
    """Return the bench on "cuda" or "host"; RuntimeError where there is no such device."""
    if device == "host":
        return Bench(HostAccelerator(), options, limit_s, weights)
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device; --device host runs tiny shapes without one")
    return Bench(CudaAccelerator(), options, limit_s, weights)


def _run_all(works: Sequence[Work]) -> None:
    for work in works:
        work()
