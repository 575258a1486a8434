"""EngineInbox: queues the messages of a session, and merges all waiting steps for the output processor.

A task of the inbox reads the session. A frontend that is slower than the engine core then handles each request's tokens of
several steps at once and catches up. Bounded: when it is full, the engine core merges steps. One event loop. Knows no requests.
"""

import asyncio
from collections import deque

from tetrad.frontend.engine.session_client import EngineSession, Notice, Rejection
from tetrad.frontend.request.steps import Step

_CAPACITY = 64
"""Maximum number of messages that are read in advance."""

Received = Step | Rejection | Notice


class EngineInbox:
    """The messages of one session, in order.

    Args:
        session: an open session; nothing else may read it.
    """

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._messages: deque[Received] = deque()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name="engine reader")
        self._reader.add_done_callback(lambda _: self._changed.set())

    async def take(self) -> Received | None:
        """Wait for the next message and return it; None when the engine has ended the stream.

        Raises:
            TetradError: the stream broke; all earlier messages have been returned before.
        """
        while not self._messages:
            if self._reader.done():
                return self._reader.result()
            self._changed.clear()
            await self._changed.wait()
        first = self._messages.popleft()
        while isinstance(first, Step) and self._messages:
            following = self._messages[0]
            if not isinstance(following, Step) or not first.try_join(following):
                break
            self._messages.popleft()
        self._has_room.set()
        return first

    async def close(self) -> None:
        """Stop reading."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self._session.receive()) is not None:
            self._messages.append(message)
            self._changed.set()
            if len(self._messages) >= _CAPACITY:
                self._has_room.clear()
                await self._has_room.wait()
