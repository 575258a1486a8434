"""Link: a proxy between two services, whose connections can be cut, stalled, slowed and filled with garbage.

Used by the stack of the chaos tests, one for each pair of services that talk. Copies bytes between Unix sockets and knows
nothing of what they mean. Invariant: a connection from which a byte was dropped is never used again.
"""

import asyncio
import contextlib
from pathlib import Path

_CHUNK_BYTES = 64 << 10
_GARBAGE = bytes(range(256)) * 4


class Link:
    """One way to reach a service.

    Args:
        name: for reports ("engine-core>worker").
        listen: where the caller connects.
        target: where the service listens; it need not exist yet.
    """

    def __init__(self, name: str, listen: Path, target: Path) -> None:
        self.name = name
        self._listen, self._target = listen, target
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._pairs: set[asyncio.Task[None]] = set()
        self._latency_s = 0.0
        self._flows = asyncio.Event()
        self._flows.set()

    @property
    def num_connections(self) -> int:
        """Connections that are open on the callers' side."""
        return len(self._pairs)

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._on_connection, self._listen)

    async def close(self) -> None:
        """Cut everything and stop listening. Safe before `start`, too."""
        if self._server is not None:
            self._server.close()
        for task in self._pairs:
            task.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    async def wait_closed(self) -> None:
        """Wait until the connections that are open now have ended."""
        if self._pairs:
            await asyncio.wait(self._pairs)

    # --- faults -----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break every connection at once: both sides see the end."""
        for writer in self._open:
            writer.transport.abort()

    async def stall(self, lasts_s: float) -> None:
        """Drop all bytes in silence for a while, as a half-open connection does, then cut; new connections are silent, too."""
        self._flows.clear()
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self.cut()
            self._flows.set()

    async def slow(self, latency_s: float, lasts_s: float) -> None:
        """Deliver everything later."""
        self._latency_s = latency_s
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self._latency_s = 0.0

    def garble(self) -> None:
        """Send garbage to both sides, in the middle of whatever they say."""
        for writer in self._open:
            if not writer.is_closing():
                writer.write(_GARBAGE)

    # --- copying ----------------------------------------------------------------------------------------------------

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs.add(task)
        self._open.add(writer)
        # The server's own bookkeeping would report a cancelled connection as an error.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await self._join(reader, writer)
            finally:
                self._pairs.discard(task)
                self._open.discard(writer)
                writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy both ways until one side ends."""
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            return  # nobody there: the caller sees its connection end
        self._open.add(far_writer)
        ways = [
            asyncio.create_task(self._copy(reader, far_writer)),
            asyncio.create_task(self._copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._open.discard(far_writer)
            far_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if not self._flows.is_set():
                    continue
                if self._latency_s:
                    await asyncio.sleep(self._latency_s)
                writer.write(data)
                await writer.drain()
        # The end of one side is as invisible through a half-open connection as its bytes.
        await self._flows.wait()
