"""Checks: whether a stack holds more after the faults than before: blocks, processes, threads, descriptors, sockets, memory.

Reads /proc and the engine core's load. A state is taken when nothing runs, before and after; growth is a leak. Both states
follow the same load after the processes' start: before, the undisturbed runs; after, the same runs once more, so that a process
that was restarted in between has at least the age, in requests, that its predecessor had.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.chaos.stack import ChaosStack
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

MARK = "CHAOS_RUN"
"""Environment variable that every process of a run inherits; its value is the run's."""

_POLL_S = 0.1
# Thread pools and gRPC make a thread or an event descriptor when they first need one, and keep it.
_SPARE_THREADS = 4
_SPARE_FDS = 4
_FRONTEND_NUMBER = re.compile(r"^frontend-\d+")
_EPOCH = re.compile(r"\bgroup-\d+$")


@dataclass(frozen=True)
class ProcessState:
    """What one process holds. Sizes in bytes."""

    pid: int
    num_fds: int
    num_threads: int
    num_children: int
    rss_bytes: int


@dataclass(frozen=True)
class StackState:
    """What a stack holds while nothing runs.

    Attributes:
        processes: by service.
        num_processes: all that carry the run's mark, the harness left out.
        files: how often each name is in the stack's directory; a frontend's socket without the number that every
            rolling restart raises, and the file of a group of ranks without its epoch.
        num_harness_fds: of this process.
    """

    processes: Mapping[str, ProcessState]
    num_processes: int
    files: Counter[str]
    num_harness_fds: int


@dataclass(frozen=True)
class EngineLoad:
    """What an engine core is busy with."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_accepted_drafts: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits and all blocks but the null block are free."""
        return self.num_running == self.num_waiting == 0 and self.num_free_blocks >= self.num_blocks - 1


async def read_load(target: str) -> EngineLoad:
    """Return the load of the engine core at `target`."""
    async with open_channel(target) as channel:
        stub = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
        response = await stub.GetLoad(engine_core_pb2.GetLoadRequest(), wait_for_ready=True, timeout=10)
    load, stats = response.load, response.load.stats
    return EngineLoad(
        stats.num_running_reqs, stats.num_waiting_reqs, load.num_gpu_blocks, load.num_free_blocks, stats.num_accepted_tokens
    )


async def wait_idle(target: str, timeout_s: float) -> EngineLoad:
    """Return the load once the engine core is idle, or after `timeout_s` whatever it is then."""
    load = await read_load(target)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not load.is_idle:
                await asyncio.sleep(_POLL_S)
                load = await read_load(target)
    return load


async def take_state(stack: ChaosStack, mark: str, *, settle_s: float) -> StackState:
    """Collect every service's garbage and return what the stack holds.

    Args:
        stack: idle and ready.
        mark: of the run.
        settle_s: for connections to close and collectors to run.
    """
    await asyncio.sleep(settle_s)
    for pid in stack.processes().values():
        os.kill(pid, signal.SIGUSR2)  # see hooks/sitecustomize.py
    await asyncio.sleep(settle_s)
    return StackState(
        processes={name: process_state(pid) for name, pid in stack.processes().items()},
        num_processes=len(marked_processes(mark)),
        files=count_files(path.name for path in stack.directory.iterdir()),
        num_harness_fds=process_state(os.getpid()).num_fds,
    )


def count_files(names: Iterable[str]) -> Counter[str]:
    """Return how often each name is there, `StackState.files`."""
    return Counter(_EPOCH.sub("group", _FRONTEND_NUMBER.sub("frontend", name)) for name in names)


def process_state(pid: int) -> ProcessState:
    """Return the resources that a process holds."""
    process = psutil.Process(pid)
    with process.oneshot():
        return ProcessState(
            pid, process.num_fds(), process.num_threads(), len(process.children(recursive=True)), process.memory_info().rss
        )


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return every process of this user that carries the mark, this one left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def find_leaks(before: StackState, after: StackState, *, memory_growth: float = 1.05) -> list[str]:
    """Return one line for each thing that is held after and was not before.

    Args:
        before, after: of the same stack.
        memory_growth: what a service may have of the memory that it had before.
    """
    leaks = []
    for name, then in before.processes.items():
        now = after.processes.get(name)
        if now is None:
            leaks.append(f"{name}: does not run")
            continue
        leaks += [f"{name}: {leak}" for leak in _leaks_of(then, now, memory_growth)]
    if after.num_processes > before.num_processes:
        leaks.append(f"{after.num_processes} processes, {before.num_processes} before")
    if new := after.files - before.files:
        leaks.append(f"new files beside the sockets: {', '.join(sorted(new))}")
    if after.num_harness_fds > before.num_harness_fds + _SPARE_FDS:
        leaks.append(f"the harness has {after.num_harness_fds} descriptors, {before.num_harness_fds} before")
    return leaks


def _leaks_of(then: ProcessState, now: ProcessState, memory_growth: float) -> list[str]:
    leaks = []
    if now.num_fds > then.num_fds + _SPARE_FDS:
        leaks.append(f"{now.num_fds} descriptors, {then.num_fds} before")
    if now.num_threads > then.num_threads + _SPARE_THREADS:
        leaks.append(f"{now.num_threads} threads, {then.num_threads} before")
    if now.num_children > then.num_children:
        leaks.append(f"{now.num_children} child processes, {then.num_children} before")
    if now.rss_bytes > then.rss_bytes * memory_growth:
        leaks.append(f"{now.rss_bytes / 2**20:.1f} MiB resident, {then.rss_bytes / 2**20:.1f} before")
    return leaks


def find_remains(mark: str, directory: Path, *, timeout_s: float) -> list[str]:
    """Return one line for each thing that a closed stack has left behind after `timeout_s`. Blocks."""
    deadline = time.monotonic() + timeout_s
    while (marked_processes(mark) or directory.exists()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    remains = [f"process {process.pid} is left: {_command(process)}" for process in marked_processes(mark)]
    return remains + ([f"{directory} is left"] if directory.exists() else [])


def find_exceptions(log: Path) -> list[str]:
    """Return one line for each exception that a service logged: faults are expected everywhere and are none."""
    events = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and "exception" in event:
                last = str(event["exception"]).strip().splitlines()[-1]
                events.append(f"{event.get('service')} logged an exception: {str(event.get('event'))[:100]!r}: {last[:300]}")
    return events


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return "?"
