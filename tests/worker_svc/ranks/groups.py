"""A worker group in one process: each rank is a Worker with a compute thread of its own, and gloo between them is real."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.worker_svc.conftest import LAYOUT
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import Device, KvLayout
from tetrad.worker_svc.core.plan import SchedulerOutput
from tetrad.worker_svc.core.ranks import GroupPlace, Shard, Stage
from tetrad.worker_svc.core.result import ExecutedStep, ModelRunnerOutput, finished
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.worker.compute_thread import ComputeThread
from tetrad.worker_svc.worker.follower import Follower
from tetrad.worker_svc.worker.worker import Worker

SETTINGS = WorkerSettings(device="cpu", threads=1)


class Rank:
    """One worker of a group."""

    def __init__(self, make_device: Callable[[], Device]) -> None:
        self.compute = ComputeThread()
        self.worker = self.compute.run(lambda: Worker(make_device()))

    def join(self, place: GroupPlace) -> None:
        orders = self.compute.run(self.worker.join_group, place)
        if orders is not None:
            Follower(orders, self.compute, self.worker.obey).start()

    def load(self, model: Path, layout: KvLayout, **options: object) -> KvLayout:
        """Return the layout that was made: blocks of a model with states are larger on several ranks."""
        self.compute.run(self.worker.load_model, str(model), lambda *_: None, **options)
        groups = self.compute.run(self.worker.kv_groups, layout.block_size)
        layout = replace(layout, block_size=groups[0].block_size or layout.block_size)
        self.compute.run(self.worker.initialize_kv_cache, layout, self.compute.run(self.worker.kv_groups, layout.block_size))
        return layout


class Group:
    """The runner of a group's leader, for a Driver."""

    def __init__(self, address: str, num_shards: int, num_stages: int, make_device: Callable[[], Device]) -> None:
        size = num_shards * num_stages
        self._sizes, self._address = (num_shards, num_stages), address
        self.ranks = [Rank(make_device) for _ in range(size)]
        self._threads = ThreadPoolExecutor(size)
        self._epoch = 0

    def join(self, first: int | None = None) -> None:
        """Let all ranks meet, as after the loss of one; `first` joins 0.1 s before the others."""
        self._epoch += 1
        addresses = [self._address.format(number) for number in range(len(self.ranks))]
        num_shards, num_stages = self._sizes
        places = [
            GroupPlace(Shard(shard, num_shards), self._epoch, addresses, 10.0, Stage(stage, num_stages))
            for stage in range(num_stages)
            for shard in range(num_shards)
        ]
        joining = [] if first is None else [self._threads.submit(self.ranks[first].join, places[first])]
        if joining:
            time.sleep(0.1)
        others = [number for number in range(len(places)) if number != first]
        joining += [self._threads.submit(self.ranks[number].join, places[number]) for number in others]
        for each in joining:
            each.result()

    def load(self, model: Path, layout: KvLayout = LAYOUT, **options: object) -> KvLayout:
        [layout] = set(self._threads.map(lambda rank: rank.load(model, layout, **options), self.ranks))
        return layout

    def each(self, run: Callable[[Worker], object]) -> list[object]:
        """Run something on all ranks at the same time, as an engine core does; return the results."""
        return list(self._threads.map(lambda rank: rank.compute.run(run, rank.worker), self.ranks))

    def warm_up(self) -> None:
        self.each(lambda worker: worker.warm_up(lambda *_: None))

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        return self.ranks[0].compute.run(lambda: finished(self.begin(plan)))

    def begin(self, plan: SchedulerOutput) -> ExecutedStep:
        """Return what the leader's runner returns; on the leader's compute thread."""
        return self.ranks[0].worker.cache.ready_runner().execute(plan)

    @property
    def _kv_cache(self) -> object:  # a Driver reads the KV groups' windows here
        runner = self.ranks[0].worker.cache.ready_runner()
        while hasattr(runner, "_runner"):
            runner = runner._runner
        return runner._kv_cache

    def close(self) -> None:
        for rank in self.ranks:
            device = rank.worker._device
            if device._ranks is not None:
                device._ranks.disconnect()
            rank.compute.close()
        self._threads.shutdown()


@contextlib.contextmanager
def open_group(
    directory: Path,
    num_shards: int,
    num_stages: int = 1,
    *,
    address: str = "",
    make_device: Callable[[], Device] = lambda: CpuDevice(SETTINGS),
) -> Iterator[Group]:
    """Run the ranks of a group that have met, without a model, each on its own device.

    The ranks meet at a file in the directory, or at a port if there is an address.
    """
    group = Group(address or f"unix:{directory}/{{}}.sock", num_shards, num_stages, make_device)
    try:
        group.join()
        yield group
    finally:
        group.close()
