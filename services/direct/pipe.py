"""Pipe: the messages of one direction of a call, from writer to reader, by reference.

Both ends of a call have one for reading and one for writing. A writer waits while the reader is `_MOST_UNREAD` messages behind,
as HTTP/2's flow control makes it wait. One event loop; a message that is written belongs to the reader.
"""

import asyncio
from collections import deque
from typing import Any

import grpc

_MOST_UNREAD = 16
"""Messages. One that is read at once costs its writer no turn of the event loop."""


class PipeClosedError(Exception):
    """A message was written to a pipe that is closed."""


class Pipe:
    """A bounded queue of messages. `is_drained`: it is closed, and everything was read."""

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self._waiting: list[asyncio.Future[None]] = []
        self._is_closed = False

    @property
    def is_drained(self) -> bool:
        """Whether a read returns EOF at once."""
        return self._is_closed and not self._messages

    async def put(self, message: Any) -> None:
        """Append a message, as soon as there is room; PipeClosedError if the pipe is closed by then."""
        while len(self._messages) >= _MOST_UNREAD and not self._is_closed:
            await self._change()
        if self._is_closed:
            raise PipeClosedError
        self._messages.append(message)
        self._wake()

    async def get(self) -> Any:
        """Remove and return the next message; grpc.aio.EOF behind the last one of a closed pipe."""
        while not self._messages:
            if self._is_closed:
                return grpc.aio.EOF
            await self._change()
        message = self._messages.popleft()
        self._wake()
        return message

    def fill(self, message: Any) -> None:
        """Hold this message, and take no more."""
        self._messages.append(message)
        self._is_closed = True

    def close(self) -> None:
        """Take no more messages; those that are here can still be read."""
        self._is_closed = True
        self._wake()

    def cut(self) -> None:
        """Take no more messages, and drop those that are here."""
        self._messages.clear()
        self.close()

    async def _change(self) -> None:
        changed = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)
