"""MediaWindow: bounds how many of a batch's requests with images are unfinished, so that the services take them all.

The services bound the bytes of images, whose sizes are unknown before they are preprocessed: the window begins wide and narrows
to what they took each time they refuse a request for its load. Owned by BatchRunner. One event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tetrad.services.errors import Overloaded
from tetrad.services.log import get_logger

T = TypeVar("T")

log = get_logger()

_WIDEST = 256


class MediaWindow:
    """The requests with images of one program."""

    def __init__(self) -> None:
        self._width = _WIDEST
        self._num_running = 0
        self._changed = asyncio.Condition()

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a request; it waits for a place in the window, and is made again if it is refused for the load.

        Args:
            attempt: runs the request to its end.

        Raises:
            Overloaded: it is refused although no other request of the window is unfinished.
            TetradError: any other error of the request.
        """
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._num_running < self._width)
                self._num_running += 1
            try:
                return await attempt()
            except Overloaded as error:
                if self._num_running == 1:
                    raise
                self._width = min(self._width, self._num_running - 1)
                log.info("media_window.narrowed", width=self._width, reason=error.message)
            finally:
                self._num_running -= 1
                async with self._changed:
                    self._changed.notify_all()
