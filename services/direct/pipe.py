"""Pipe: the messages of one direction of a call, from writer to reader, by reference.

Each side of a call has one pipe for reading and one for writing. A writer waits while `_MOST_UNREAD` messages are unread, like
with HTTP/2's flow control. Used on one event loop; a written message belongs to the reader.
"""

import asyncio
from collections import deque
from typing import Any

import grpc

_MOST_UNREAD = 16
"""Maximum number of unread messages. If each is read at once, the writer never waits for a turn of the event loop."""


class PipeClosedError(Exception):
    """A message was written to a closed pipe."""


class Pipe:
    """A bounded queue of messages. `is_drained`: whether it is closed and everything was read."""

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self._waiting: list[asyncio.Future[None]] = []
        self._is_closed = False

    @property
    def is_drained(self) -> bool:
        """Whether a read returns EOF at once."""
        return self._is_closed and not self._messages

    async def put(self, message: Any) -> None:
        """Append a message once there is room. Raises PipeClosedError if the pipe is closed by then."""
        while len(self._messages) >= _MOST_UNREAD and not self._is_closed:
            await self._change()
        if self._is_closed:
            raise PipeClosedError
        self._messages.append(message)
        self._wake()

    async def get(self) -> Any:
        """Remove and return the next message; grpc.aio.EOF after the last one of a closed pipe."""
        while not self._messages:
            if self._is_closed:
                return grpc.aio.EOF
            await self._change()
        message = self._messages.popleft()
        self._wake()
        return message

    def fill(self, message: Any) -> None:
        """Append this message, and close the pipe."""
        self._messages.append(message)
        self._is_closed = True

    def close(self) -> None:
        """Accept no more messages; those in the pipe can still be read."""
        self._is_closed = True
        self._wake()

    def cut(self) -> None:
        """Accept no more messages, and drop those in the pipe."""
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
