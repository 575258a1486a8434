"""Levels: samples the memory, descriptors, threads and KV blocks of a loaded stack, and checks that they do not grow.

The soaks use it. It reads the processes and the engine core's load from outside. The first quarter of the samples is the
warm-up and is ignored.
"""

import asyncio
import contextlib
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.processes import ProcessTree
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

_CALL_TIMEOUT_S = 30.0
_MIN_SAMPLES = 8


@dataclass(frozen=True)
class Bound:
    """The allowed rise of a level: the larger of a share of the level and a fixed amount.

    Args:
        share: allowed rise as a share of the value in the second quarter.
        spare: allowed rise in the level's unit.
    """

    share: float
    spare: float

    def holds(self, before: float, after: float) -> bool:
        """Return whether the rise from `before` to `after` is allowed."""
        return after <= before + max(before * self.share, self.spare)


BOUNDS: Mapping[str, Bound] = {
    "MiB": Bound(0.05, 2),
    "descriptors": Bound(0.02, 4),
    "threads": Bound(0.0, 4),
    "KV blocks": Bound(0.1, 8),
}


@dataclass(frozen=True)
class Load:
    """The load of an engine core."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_used_blocks: int

    @property
    def is_idle(self) -> bool:
        """Whether the engine core has no request, and no block but the null block is in use."""
        return self.num_running == self.num_waiting == 0 and self.num_used_blocks <= 1


async def read_load(admin_target: str) -> Load:
    """Return the load of the engine core whose admin API is at `admin_target`."""
    async with open_channel(admin_target) as channel:
        stub = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
        response = await stub.GetLoad(engine_core_pb2.GetLoadRequest(), timeout=_CALL_TIMEOUT_S)
    load = response.load
    used = load.num_gpu_blocks - load.num_free_blocks
    return Load(load.stats.num_running_reqs, load.stats.num_waiting_reqs, load.num_gpu_blocks, used)


class Levels:
    """Samples of the levels of a stack.

    Args:
        root: id of the process that started the others.
        admin_target: address of the engine core's admin API; None: KV blocks are not sampled.
    """

    def __init__(self, root: int, admin_target: str | None = None) -> None:
        self._tree, self._admin_target = ProcessTree(root), admin_target
        self.samples: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    async def watch(self, interval_s: float) -> None:
        """Take samples every `interval_s` seconds until cancelled."""
        while True:
            self._sample_processes()
            if self._admin_target is not None:
                load = await read_load(self._admin_target)
                self.samples["engine core", "KV blocks"].append(load.num_used_blocks)
            await asyncio.sleep(interval_s)

    def _sample_processes(self) -> None:
        for service, processes in self._tree.by_service().items():
            held = [each for process in processes if (each := _held(process)) is not None]
            for unit, values in zip(("MiB", "descriptors", "threads"), zip(*held, strict=True), strict=False):
                self.samples[service, unit].append(sum(values))

    def judge(self) -> list[str]:
        """Return one line for each level that rose. Levels with few samples are not judged."""
        return [
            f"{service}: {before:.1f} {unit} in the second quarter, {after:.1f} in the last"
            for (service, unit), values in sorted(self.samples.items())
            if len(values) >= _MIN_SAMPLES
            for before, after in [quarters(values)]
            if not BOUNDS[unit].holds(before, after)
        ]

    def lines(self) -> list[str]:
        """Return one line of text for each level."""
        return [
            f"{service:<12} {unit:<12} {before:8.1f} > {after:8.1f}   least {min(values):.1f}, most {max(values):.1f}"
            for (service, unit), values in sorted(self.samples.items())
            for before, after in [quarters(values)]
        ]


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the second and of the last quarter."""
    quarter = max(len(values) // 4, 1)
    return statistics.median(values[quarter : 2 * quarter] or values), statistics.median(values[-quarter:])


def _held(process: psutil.Process) -> tuple[float, int, int] | None:
    """Return MiB, descriptors and threads of a process; None if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess), process.oneshot():
        return process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
    return None
