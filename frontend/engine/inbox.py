"""EngineInbox: queues the messages of a session. The output processor takes all waiting steps as one.

Filled by its own task. A frontend that is slower than the engine core then handles each request's tokens of several steps at
once and catches up. Bounded: when it is full, the engine core merges. One event loop. Knows no requests.
"""

import asyncio
from collections import deque

from tetrad.frontend.engine.session_client import EngineSession, Notice, Rejection
from tetrad.frontend.request.steps import Step

_CAPACITY = 64
"""Messages that are read ahead."""

Received = Step | Rejection | Notice


class EngineInbox:
    """The messages of one session, in order.

    Args:
        session: open; read from here alone.
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
            TetradError: the stream broke; everything that came before has been taken.
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
        """Read no more."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self._session.receive()) is not None:
            self._messages.append(message)
            self._changed.set()
            if len(self._messages) >= _CAPACITY:
                self._has_room.clear()
                await self._has_room.wait()
