"""Peers: the frontends of one port. Each lets the others read its metrics, over a socket in a directory that they share.

A frontend that is alone has none of this. A socket is named by its process's slot. One event loop.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from tetrad.frontend.net.peer_slots import PeerSlots

_SUFFIX = ".metrics"
_TIMEOUT_S = 2.0
"""For another frontend to answer: one that is busy for longer is left out of a page."""


class Peers:
    """This frontend among those of its port.

    Args:
        directory: that they share; made if it is not there.

    Attributes:
        slots: what all of them count together.
    """

    def __init__(self, directory: Path) -> None:
        self.slots = PeerSlots(directory / "counts")
        self._directory = directory
        self._path = directory / f"{self.slots.number}{_SUFFIX}"
        self._server: asyncio.Server | None = None

    async def serve(self, render: Callable[[], bytes]) -> None:
        """Let other frontends read this one's metrics."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(render())
                await writer.drain()
                writer.close()

        self._path.unlink(missing_ok=True)  # of a process that was killed
        self._server = await asyncio.start_unix_server(answer, self._path)

    async def pages(self) -> dict[int, bytes]:
        """Return the metrics of all other frontends that answer, by their slots."""
        paths = [path for path in self._directory.glob(f"*{_SUFFIX}") if path != self._path]
        pages = await asyncio.gather(*map(_read, paths))
        return {int(path.stem): page for path, page in zip(paths, pages, strict=True) if page}

    async def close(self) -> None:
        """Leave. Safe to call twice."""
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
