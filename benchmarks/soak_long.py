"""Long soak: runs a stack on the simulated device near its limits for hours; its memory and other levels must not grow.

It keeps 90% of the requests that the stack may hold (running and waiting) in progress all the time, and samples memory,
descriptors, threads and KV blocks. `python -m benchmarks.soak_long --hours 4`; the exit status is 1 if a request failed, a
level rose, or the engine core still holds a resource at the end.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import uvloop

from benchmarks.levels import Levels, read_load
from benchmarks.soak import keep_streams
from benchmarks.stack import Stack, running
from benchmarks.streams import StreamClient

_SHARE_OF_LIMITS = 0.9
_SAY_EVERY_S = 60.0
_NUM_SAMPLES = 400
_IDLE_TIMEOUT_S = 60.0


@dataclass
class Seen:
    """The results of the clients."""

    num_streams: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def take(self, client: StreamClient) -> None:
        """Count a stream that has ended."""
        self.num_streams += 1
        if client.error or client.status != 200:
            self.errors[client.error or f"HTTP {client.status}"] += 1


async def soak(stack: Stack, args: argparse.Namespace) -> list[str]:
    """Run the load; return a description of each fault."""
    seen, admin_target = Seen(), stack.engine_target.replace("engine-core.sock", "engine-core-admin.sock")
    levels = Levels(stack.pid, admin_target)
    held = round(_SHARE_OF_LIMITS * (args.running + args.queued))
    async with asyncio.TaskGroup() as group:
        group.create_task(_until(args.seconds, levels.watch(max(args.seconds / _NUM_SAMPLES, 0.5))))
        group.create_task(_until(args.seconds, _say_progress(seen, levels, args.seconds)))
        streams = keep_streams(stack.url, seen.take, clients=held, seconds=args.seconds, max_tokens=args.max_tokens)
        group.create_task(streams)
    sys.stdout.write("\n".join([f"streams {seen.num_streams}, errors {seen.errors.total()}", *levels.lines(), ""]))
    faults = [f"{number} x {error}" for error, number in seen.errors.most_common(5)]
    return faults + levels.judge() + await _judge_idle(admin_target)


async def _until(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` for `seconds`, then cancel it. The load continues until the last streams have ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def _say_progress(seen: Seen, levels: Levels, seconds: float) -> None:
    started_at = time.monotonic()
    while True:
        await asyncio.sleep(_SAY_EVERY_S)
        elapsed_s = time.monotonic() - started_at
        now = ", ".join(f"{service} {values[-1]:.0f}" for (service, unit), values in levels.samples.items() if unit == "MiB")
        sys.stdout.write(
            f"{elapsed_s:6.0f} of {seconds:.0f} s: {seen.num_streams} streams, {seen.errors.total()} errors; MiB: {now}\n"
        )
        sys.stdout.flush()


async def _judge_idle(admin_target: str) -> list[str]:
    """Return descriptions of the resources that the engine core still holds after the last request."""
    deadline = time.monotonic() + _IDLE_TIMEOUT_S
    while not (load := await read_load(admin_target)).is_idle and time.monotonic() < deadline:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.5)
    return [] if load.is_idle else [f"the engine core is not idle at the end: {load}"]


def main() -> None:
    """Start a stack, run the soak, and print the faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=None, help="instead of hours")
    parser.add_argument("--running", type=int, default=256, help="most sequences that run at the same time")
    parser.add_argument("--queued", type=int, default=1024, help="most requests that wait at the same time")
    parser.add_argument("--step-s", type=float, default=0.1, help="seconds that a step of the simulated device takes")
    parser.add_argument("--max-tokens", type=int, default=100, help="of each stream")
    parser.add_argument("flags", nargs="*", help="further flags of tetrad serve")
    args = parser.parse_args()
    args.seconds = args.hours * 3600 if args.seconds is None else args.seconds
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.environ["TETRAD_ENGINE_CORE_MAX_NUM_QUEUED_REQS"] = str(args.queued)
    os.environ["TETRAD_WORKER_SIM_SECONDS_PER_STEP"] = str(args.step_s)
    limits = ("--max-num-requests", str(args.running + args.queued), "--max-num-seqs", str(args.running))
    with running("--device", "sim", *limits, *args.flags) as stack:
        faults = uvloop.run(soak(stack, args))
    for fault in faults:
        sys.stdout.write(f"NOT SO: {fault}\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
