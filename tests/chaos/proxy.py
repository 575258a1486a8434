"""Link: a proxy between two services, whose connections can be cut, stalled, held, slowed and filled with garbage.

Used by the stack of the chaos tests, one for each pair of connected services. Copies bytes without reading them. The service
listens on a Unix socket; the caller connects to another one, or over the network of network.py, which can lose packets as
well. Invariant: a connection from which a byte was dropped is never used again.
"""

import asyncio
import contextlib
import socket
from collections.abc import Collection
from pathlib import Path

from tests.chaos.network import BOTH, Network, Way, Weather

_CHUNK_BYTES = 64 << 10
_GARBAGE = bytes(range(256)) * 4


class Link:
    """One way to reach a service.

    Args:
        name: for reports ("engine-core>worker").
        target: socket where the service listens; it need not exist yet.
        listen: socket where the caller connects; None: a port of `network`.
        network: where the caller comes from, if not from a Unix socket.
    """

    def __init__(self, name: str, target: Path, listen: Path | None = None, network: Network | None = None) -> None:
        self.name = name
        self.target = target
        self._listen, self._network = listen, network
        self._port: socket.socket | None = None
        if network is not None:
            self._port = socket.create_server((network.near, 0))
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._pairs: set[asyncio.Task[None]] = set()
        self._latency_s = 0.0
        self._drops: frozenset[Way] = frozenset()
        self._held: frozenset[Way] = frozenset()
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        """Where the caller connects, as a gRPC target."""
        if self._network is None:
            return f"unix:{self._listen}"
        return f"{self._network.far}:{self._port_number()}"

    @property
    def weather(self) -> Weather | None:
        """What happens to the packets between caller and link; None: there are none."""
        return None if self._network is None else self._network.weather(self._port_number())

    @property
    def num_connections(self) -> int:
        """Connections that are open on the callers' side."""
        return len(self._pairs)

    async def start(self) -> None:
        """Listen."""
        if self._port is not None:
            self._server = await asyncio.start_server(self._on_connection, sock=self._port)
        else:
            self._server = await asyncio.start_unix_server(self._on_connection, self._listen)

    async def close(self) -> None:
        """Cut everything and stop listening. Safe before `start`, too."""
        if self._server is not None:
            self._server.close()
        elif self._port is not None:
            self._port.close()
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

    async def stall(self, lasts_s: float, ways: Collection[Way] = BOTH) -> None:
        """Drop all bytes in silence for a while, as a half-open connection does, then cut; new connections are silent, too."""
        self._drops = frozenset(ways)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self.cut()
            self._drops = frozenset()
            self._note_change()

    async def partition(self, lasts_s: float, ways: Collection[Way] = BOTH) -> None:
        """Let nothing pass for a while; what was sent arrives afterwards, unless a side has given the connection up."""
        weather = self.weather
        if weather is None:
            self._held = frozenset(ways)
        else:
            weather.closed = frozenset(ways)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self._held = frozenset()
            self._note_change()
            if weather is not None:
                weather.closed = frozenset()

    async def lose(self, share: float, lasts_s: float) -> None:
        """Lose this share of the packets; only over the network."""
        assert self.weather is not None
        self.weather.lost_share = share
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self.weather.lost_share = 0.0

    async def reorder(self, max_delay_s: float, lasts_s: float) -> None:
        """Deliver each packet up to so much later, and so out of order; only over the network."""
        assert self.weather is not None
        self.weather.max_delay_s = max_delay_s
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self.weather.max_delay_s = 0.0

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
            far_reader, far_writer = await asyncio.open_unix_connection(self.target)
        except OSError:
            return  # nobody there: the caller sees its connection end
        self._open.add(far_writer)
        ways = [
            asyncio.create_task(self._copy(reader, far_writer, "there")),
            asyncio.create_task(self._copy(far_reader, writer, "back")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._open.discard(far_writer)
            far_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if way in self._drops:
                    continue
                await self._wait_open(way)
                if self._latency_s:
                    await asyncio.sleep(self._latency_s)
                writer.write(data)
                await writer.drain()
        # The end of one side is as invisible through a half-open connection as its bytes.
        await self._wait_open(way)

    async def _wait_open(self, way: Way) -> None:
        while way in self._drops or way in self._held:
            await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _port_number(self) -> int:
        assert self._port is not None
        return int(self._port.getsockname()[1])
