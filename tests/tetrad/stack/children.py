"""Children of a supervisor: tiny Python programs that live, die and refuse on command, and their observation."""

import asyncio
import os
import sys
from collections.abc import Callable

import psutil

from tetrad.stack.child import Child

SLEEP = "import signal; signal.pause()"


def child(source: str, *, name: str = "cup", **fields) -> Child:
    return Child(name, (sys.executable, "-c", source), {"PATH": os.environ["PATH"]}, **fields)


class States:
    """Remembers what the supervisor says, and lets a test wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self._changed = asyncio.Condition()
        self._notifying: list[asyncio.Task[None]] = []

    def __call__(self, name: str, state: str, why: str) -> None:
        self.seen.append((name, state, why))
        self._notifying.append(asyncio.create_task(self._notify()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def count(self, state: str) -> int:
        return sum(seen == state for _, seen, _ in self.seen)

    async def wait_count(self, state: str, number: int) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: self.count(state) >= number)


def gone(process: psutil.Process, wait: Callable = psutil.wait_procs) -> bool:
    try:
        _, alive = wait([process], timeout=5)
    except psutil.NoSuchProcess:  # it ended while psutil looked
        return True
    return not alive


SERVE = """
import asyncio
from tetrad.services.rpc.server import Server
from tetrad.services.settings import ServiceSettings

async def main():
    server = Server(ServiceSettings(listen=%r), {"x.Cup": lambda server: None})
    await server.start()
    await server.health.set_ready(True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
