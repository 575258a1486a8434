"""A frozen peer is detected by both ends of every connection, and one that resumes in time is not lost."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.stoppable_peer import KINDS, Streams, hold_all, serve

FOUND_WITHIN_S = 16
SHORT_FREEZE_S = 5


@dataclass
class Peer:
    process: asyncio.subprocess.Process
    served: Streams
    held: dict[str, asyncio.Task[None]]

    @property
    def open_streams(self) -> set[str]:
        return self.served.open | {f"to {name}" for name, task in self.held.items() if not task.done()}

    async def wait_all_ended(self) -> None:
        await asyncio.gather(*self.held.values(), self.served.wait_none_open())


@contextlib.asynccontextmanager
async def open_peer(make_socket, name: str) -> AsyncIterator[Peer]:
    """Start a process that serves this one's streams, and has its own served here."""
    ours, server = await serve(make_socket(f"ours-of-{name}"))
    called = (make_socket(f"ours-of-{name}"), server.address)
    command = [sys.executable, "-m", "tests.services.stoppable_peer", make_socket(name), *called]
    root = Path(__file__).parents[3]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=root)
    held: dict[str, asyncio.Task[None]] = {}
    try:
        address = (await process.stdout.readline()).decode().strip()
        is_open, opened = asyncio.Event(), []
        held = hold_all((make_socket(name), address), lambda name: (opened.append(name), len(opened) == 6 and is_open.set()))
        await asyncio.wait_for(is_open.wait(), 20)
        yield Peer(process, ours, held)
    finally:
        process.kill()
        await process.wait()
        for task in held.values():
            task.cancel()
        await asyncio.gather(*held.values(), return_exceptions=True)
        await server.stop()


@pytest.fixture
async def peers(make_socket):
    """Return two such processes, so that two freezes take the time of one."""
    async with open_peer(make_socket, "short") as short, open_peer(make_socket, "lasting") as lasting:
        yield short, lasting


async def test_a_freeze_of_5_s_costs_nothing_and_a_frozen_peer_is_found_in_16_s_by_both_ends_on_every_connection(peers):
    short, lasting = peers
    all_streams = short.open_streams
    assert len(all_streams) == len(lasting.open_streams) == 2 * 2 * len(KINDS)

    async with asyncio.timeout(FOUND_WITHIN_S):
        for peer in peers:
            peer.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(SHORT_FREEZE_S)
        short.process.send_signal(signal.SIGCONT)
        await lasting.wait_all_ended()

    assert short.open_streams == all_streams
