"""Stderr: copies a stack's stderr into a file, and can stop reading, as a terminal does after Ctrl-S.

The pipe is as small as the system allows, so that a few lines fill it. Owned by one event loop.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_PIPE_BYTES = 4096
_LAST_LINES_S = 5.0


class Stderr:
    """One pipe. Use as an async context manager once the process has it; that ends with the process.

    Args:
        log: where the lines go.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._flows = asyncio.Event()
        self._flows.set()
        self._read_end = -1
        self._copying: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def pipe(self) -> Iterator[int]:
        """Make the pipe and give its write end, for a process that is started inside the block."""
        self._read_end, write_end = os.pipe()
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            yield write_end
        finally:
            os.close(write_end)

    async def block(self, lasts_s: float) -> None:
        """Read nothing for a while."""
        self._flows.clear()
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self._flows.set()

    async def __aenter__(self) -> "Stderr":
        reader = asyncio.StreamReader(limit=_PIPE_BYTES // 2)  # it stops reading when it has twice as much
        pipe = os.fdopen(self._read_end, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._copying = asyncio.create_task(self._copy(reader, transport))
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._copying is not None
        self._flows.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._copying, _LAST_LINES_S)

    async def _copy(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        try:
            with self._log.open("wb", buffering=0) as log:
                while data := await reader.read(_PIPE_BYTES):
                    log.write(data)
                    await self._flows.wait()
        finally:
            transport.close()
