"""Peers: exchanges metrics between the frontends of one port, over sockets in a directory that they share.

A single frontend of a port does not use it. The name of a socket is the number of its process's slot. One event loop.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from tetrad.frontend.net.peer_slots import PeerSlots

_SUFFIX = ".metrics"
_TIMEOUT_S = 2.0
"""Seconds to wait for another frontend to answer, or to read an answer; one that is busy for longer is left out."""


class Peers:
    """The connections of this frontend to the others of its port.

    Args:
        directory: the shared directory; created if it does not exist.

    Attributes:
        slots: the counters of all frontends of the port.
    """

    def __init__(self, directory: Path) -> None:
        self.slots = PeerSlots(directory / "counts")
        self._directory = directory
        self._path = directory / f"{self.slots.number}{_SUFFIX}"
        self._server: asyncio.Server | None = None

    async def serve(self, render: Callable[[], bytes]) -> None:
        """Serve this frontend's metrics, which `render` returns, to the other frontends."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    writer.write(render())
                    await writer.drain()
                writer.close()
            except (OSError, TimeoutError):
                # A suspended frontend does not read; `close` would wait for its connection.
                writer.transport.abort()

        self._path.unlink(missing_ok=True)  # left by a killed process
        self._server = await asyncio.start_unix_server(answer, self._path)

    async def pages(self) -> dict[int, bytes]:
        """Return the metrics of all other frontends that answer, by the number of their slot."""
        paths = [path for path in self._directory.glob(f"*{_SUFFIX}") if path != self._path]
        pages = await asyncio.gather(*map(_read, paths))
        return {int(path.stem): page for path, page in zip(paths, pages, strict=True) if page}

    async def close(self) -> None:
        """Stop serving and release the slot. Further calls do nothing."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._path.unlink(missing_ok=True)
            self._server = None
        self.slots.close()


async def _read(path: Path) -> bytes:
    """Return a frontend's answer; empty if it has ended or does not answer in time."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return await reader.read()
            finally:
                writer.close()
    return b""
