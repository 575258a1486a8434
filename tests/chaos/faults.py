"""Faults: injects each kind of kinds.py into a stack, and heals it.

A function for each sort of fault. It returns whether the fault was injected: its target may be restarting, or may have the
fault already. Every function heals its fault, also when it is cancelled. Knows nothing of requests.
"""

import asyncio
import contextlib
import errno
import os
import random
import resource
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tests.chaos import cgroup
from tests.chaos.network import BOTH, Way
from tests.chaos.schedule import PAIR, Fault
from tests.chaos.stack import SUPERVISOR, ChaosStack

_SLOW_LATENCY_S = 0.05
_LOST_SHARE = 0.1
_MAX_PACKET_DELAY_S = 0.02
_CLOCK_STEPS_S = (-3600.0, -30.0, 30.0, 3600.0)
_SPARE_MEMORY_BYTES = 256 << 10
_SPARE_DESCRIPTORS = 1
# Lines that fill a pipe of 4 KiB and the buffer of its reader.
_NUM_MALFORMED = 200
_MALFORMED_TIMEOUT_S = 2.0
_RESTARTED_WHILE_BLOCKED = "tokenizer"
_RESTART_TIMEOUT_S = 90.0
# Time in which a healthy stack might wrongly report a failure.
_SECOND_THOUGHTS_S = 3.0

Strike = Callable[[ChaosStack, Fault], Awaitable[bool]]


class Wronged(Exception):
    """The stack did something that the fault does not explain."""


async def strike(stack: ChaosStack, fault: Fault) -> bool:
    """Inject a fault and heal it; return whether it was injected.

    Raises:
        Wronged: the stack replaced a healthy service, or did not follow a command.
    """
    return await _STRIKES[fault.kind](stack, fault)


# --- services ---------------------------------------------------------------------------------------------------------


async def _kill(stack: ChaosStack, fault: Fault) -> bool:
    return stack.signal(fault.target, signal.SIGKILL)


async def _drain(stack: ChaosStack, fault: Fault) -> bool:
    return stack.signal(fault.target, signal.SIGTERM)


async def _restart(stack: ChaosStack, fault: Fault) -> bool:
    await stack.restart(fault.target)
    return True


async def _freeze(stack: ChaosStack, fault: Fault) -> bool:
    """Freeze one service or several."""
    pids = stack.pids()
    names = [name for name in fault.target.split(PAIR) if stack.signal(name, signal.SIGSTOP)]
    try:
        await asyncio.sleep(fault.lasts_s if names else 0)
    finally:
        for name in names:
            if stack.pids().get(name) == pids[name]:
                stack.signal(name, signal.SIGCONT)
    return bool(names)


async def _take_memory(stack: ChaosStack, fault: Fault) -> bool:
    """Let the kernel kill a service when it allocates more, or let it live if it does not."""
    pid = stack.pids().get(fault.target)
    if pid is None:
        return False
    if fault.target == "frontend":
        stack.lives.begin()  # before the kernel does it
    try:
        with cgroup.starved(pid, _SPARE_MEMORY_BYTES):
            await asyncio.sleep(fault.lasts_s)
    except FileNotFoundError:
        return False  # it ended before it could be put into the group
    finally:
        if fault.target == "frontend" and stack.pids().get(fault.target) == pid and _is_alive(pid):
            stack.lives.end()
    return True


async def _take_descriptors(stack: ChaosStack, fault: Fault) -> bool:
    """Take all free descriptors of a service."""
    pid = stack.pids().get(fault.target)
    if pid is None:
        return False
    try:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        enough = _highest_descriptor(pid) + 1 + _SPARE_DESCRIPTORS
        if soft <= enough:
            return False  # it has too few already
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (enough, hard))
    except (ProcessLookupError, FileNotFoundError):
        return False
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    return True


async def _step_clock(stack: ChaosStack, fault: Fault) -> bool:
    """Step the wall clock of a service, and back."""
    assert stack.preload is not None
    module = stack.module(fault.target)
    if not _claim(stack, f"clock {module}"):
        return False
    try:
        stack.preload.set_clock(module, random.Random(fault.at_s).choice(_CLOCK_STEPS_S))
        await asyncio.sleep(fault.lasts_s)
    finally:
        stack.preload.set_clock(module, 0)
        _release(stack, f"clock {module}")
    return True


async def _break_disk(stack: ChaosStack, fault: Fault) -> bool:
    assert stack.preload is not None
    module = stack.module(fault.target)
    if not _claim(stack, f"disk {module}"):
        return False
    if fault.target == "frontend":
        stack.disk.begin()
    try:
        stack.preload.set_disk_errno(module, errno.ENOSPC if fault.kind == "disk-full" else errno.EIO)
        await asyncio.sleep(fault.lasts_s)
    finally:
        stack.preload.set_disk_errno(module, 0)
        if fault.target == "frontend":
            stack.disk.end()
        _release(stack, f"disk {module}")
    return True


# --- the stack --------------------------------------------------------------------------------------------------------


async def _freeze_stack(stack: ChaosStack, fault: Fault) -> bool:
    """Freeze every process, and continue all together: none of them may be replaced for it."""
    before = stack.processes()
    _signal_all(before, signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        _signal_all(before, signal.SIGCONT)
    await asyncio.sleep(_SECOND_THOUGHTS_S)
    if replaced := [name for name, pid in stack.processes().items() if before.get(name, pid) != pid]:
        raise Wronged(f"After {fault.lasts_s:.0f} s in which the whole stack stood still, {', '.join(replaced)} was replaced")
    return True


async def _freeze_supervisor(stack: ChaosStack, fault: Fault) -> bool:
    supervisor = {SUPERVISOR: stack.supervisor_pid}
    _signal_all(supervisor, signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        _signal_all(supervisor, signal.SIGCONT)
    return True


async def _block_stderr(stack: ChaosStack, fault: Fault) -> bool:
    """Read nothing of the stack's stderr, fill the pipe, and order a restart, which must not wait for a reader.

    The pipe stays blocked until the restart is done: on a busy machine, that may be later than the fault's own end.
    """
    blocking = asyncio.create_task(stack.stderr.block(2 * _RESTART_TIMEOUT_S))
    try:
        await _send_malformed(stack)
        await asyncio.wait_for(stack.restart(_RESTARTED_WHILE_BLOCKED), _RESTART_TIMEOUT_S)
        await asyncio.sleep(fault.lasts_s)
    except TimeoutError:
        while_blocked = f"for {_RESTART_TIMEOUT_S:.0f} s in which nobody read its stderr"
        raise Wronged(f"The supervisor restarted nothing {while_blocked}") from None
    finally:
        blocking.cancel()
    return True


async def _send_malformed(stack: ChaosStack) -> None:
    """Send requests that the frontend logs as malformed."""
    for _ in range(_NUM_MALFORMED):
        try:
            reader, writer = await asyncio.open_connection(stack.host, stack.port)
            writer.write(b"no request\r\n\r\n")
            await asyncio.wait_for(reader.read(), _MALFORMED_TIMEOUT_S)
        except (OSError, TimeoutError):
            return  # no frontend just now, or it waits for the pipe
        writer.close()


# --- links ------------------------------------------------------------------------------------------------------------


async def _disturb(stack: ChaosStack, fault: Fault) -> bool:
    link, lasts_s = stack.links[fault.target], fault.lasts_s
    verb, _, direction = fault.kind.partition("-")
    ways: frozenset[Way] = BOTH if not direction else frozenset(way for way in BOTH if way == direction)
    match verb:
        case "cut":
            link.cut()
        case "garble":
            link.garble()
        case "stall":
            await link.stall(lasts_s, ways)
        case "partition":
            await link.partition(lasts_s, ways)
        case "slow":
            await link.slow(_SLOW_LATENCY_S, lasts_s)
        case "loss":
            await link.lose(_LOST_SHARE, lasts_s)
        case "reorder":
            await link.reorder(_MAX_PACKET_DELAY_S, lasts_s)
        case _:
            raise ValueError(f"There is no way to {fault.kind} a link.")
    return True


_STRIKES: Mapping[str, Strike] = {
    "kill": _kill,
    "burst": _kill,  # the burst itself is the load's
    "drain": _drain,
    "restart": _restart,
    "freeze": _freeze,
    "freeze-long": _freeze,
    "freeze-two": _freeze,
    "freeze-stack": _freeze_stack,
    "freeze-supervisor": _freeze_supervisor,
    "block-stderr": _block_stderr,
    "clock": _step_clock,
    "disk-full": _break_disk,
    "disk-error": _break_disk,
    "memory": _take_memory,
    "descriptors": _take_descriptors,
    "cut": _disturb,
    "garble": _disturb,
    "slow": _disturb,
    "stall": _disturb,
    "stall-there": _disturb,
    "stall-back": _disturb,
    "partition": _disturb,
    "partition-there": _disturb,
    "partition-back": _disturb,
    "loss": _disturb,
    "reorder": _disturb,
}


def _signal_all(pids: Mapping[str, int], number: signal.Signals) -> None:
    for pid in pids.values():
        if _is_alive(pid):
            os.kill(pid, number)


def _highest_descriptor(pid: int) -> int:
    """Return the largest descriptor of a process; ProcessLookupError if it has ended, also as a zombie."""
    numbers = [int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()]
    if not numbers:
        raise ProcessLookupError(f"process {pid} has ended")
    return max(numbers)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _claim(stack: ChaosStack, what: str) -> bool:
    """Reserve a target until `_release`; return False if another fault has it."""
    free = what not in stack.disturbed
    stack.disturbed.add(what)
    return free


def _release(stack: ChaosStack, what: str) -> None:
    stack.disturbed.discard(what)
