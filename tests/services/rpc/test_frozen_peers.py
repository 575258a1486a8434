"""A frozen peer is detected by both ends of every connection, and one that resumes in time is not lost."""

import asyncio
import signal
import sys
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


@pytest.fixture
async def peer(make_socket):
    """Return a process that serves this one's streams, and has its own served here."""
    ours, server = await serve(make_socket("ours"))
    called = (make_socket("ours"), server.address)
    command = [sys.executable, "-m", "tests.services.stoppable_peer", make_socket("peer"), *called]
    root = Path(__file__).parents[3]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=root)
    held: dict[str, asyncio.Task[None]] = {}
    try:
        address = (await process.stdout.readline()).decode().strip()
        is_open, opened = asyncio.Event(), []
        held = hold_all((make_socket("peer"), address), lambda name: (opened.append(name), len(opened) == 6 and is_open.set()))
        await asyncio.wait_for(is_open.wait(), 20)
        yield Peer(process, ours, held)
    finally:
        process.kill()
        await process.wait()
        for task in held.values():
            task.cancel()
        await asyncio.gather(*held.values(), return_exceptions=True)
        await server.stop()


async def test_a_freeze_of_5_s_costs_nothing_and_a_frozen_peer_is_found_in_16_s_by_both_ends_on_every_connection(peer):
    all_streams = peer.open_streams
    assert len(all_streams) == 2 * 2 * len(KINDS)

    peer.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(SHORT_FREEZE_S)
    peer.process.send_signal(signal.SIGCONT)
    await asyncio.sleep(0.2)
    assert peer.open_streams == all_streams

    peer.process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(FOUND_WITHIN_S):
        await peer.wait_all_ended()
