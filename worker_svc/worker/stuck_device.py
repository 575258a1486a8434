"""Stuck device: notices a step that does not end after its caller has left.

On the event loop. An engine core gives up a worker whose step takes too long, but the step itself cannot be cancelled, and the
next engine core would wait behind it for ever: all that helps is another process. Knows no steps: the compute thread runs calls
in order, so a stream's last call is done when its steps are.
"""

import asyncio

from tetrad.services.errors import InternalError
from tetrad.services.running_time import RunningTimer


class StuckDevice:
    """Watches the ends of streams.

    Args:
        timeout_s: how long the device may take to come to a stream's end.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._found = asyncio.Event()

    def watch(self, ending: asyncio.Future[None]) -> None:
        """Expect a stream's last call to be done in time."""
        timer = RunningTimer(self._timeout_s, self._found.set)
        ending.add_done_callback(lambda _: timer.cancel())

    async def wait(self) -> None:
        """Return never, or raise InternalError when the device is stuck."""
        await self._found.wait()
        raise InternalError(f"The device has been busy with a step for {self._timeout_s:g} s after its stream ended.")
