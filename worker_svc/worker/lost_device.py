"""Lost device: detects that a device is of no more use to this process, because it hangs in a step or fails every call.

On the event loop. Only a new process helps, so the service ends.

- A hang: an engine core gives up a worker whose step takes too long, but the step itself cannot be cancelled, and the next
  engine core would wait for it without end. The compute thread runs calls in order, so a stream's last call is done when its
  steps are.
- A function: one of the program that owns the worker (worker/functions.py) has outlived its caller's timeout.
- A lost context: after an illegal memory access CUDA answers every call with the same error. Steps of innocent requests would
  fail on the same process, and their requests would be found guilty.
"""

import asyncio

from tetrad.services.errors import InternalError
from tetrad.services.log import get_logger
from tetrad.services.timers.running_time import RunningTimer

log = get_logger()

_FUNCTION_GRACE_S = 1.0


class LostDevice:
    """Watches the ends of streams and the checks behind failed steps.

    Args:
        timeout_s: time limit of the device for the end of a stream, and for a check.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def watch(self, ending: asyncio.Future[None]) -> None:
        """Expect a stream's last call, or a check, to be done in time."""
        self._expect(ending, self._timeout_s, "The device has been busy with a step for {:g} s after its stream ended.")

    def watch_function(self, ending: asyncio.Future[None]) -> None:
        """Expect the end of a function whose caller has left: nothing else can end it, and steps wait for it."""
        self._expect(ending, _FUNCTION_GRACE_S, "A function of the program runs {:g} s after its call ended.")

    def _expect(self, ending: asyncio.Future[None], timeout_s: float, reason: str) -> None:
        timer = RunningTimer(timeout_s, lambda: self._give_up(reason.format(timeout_s)))
        ending.add_done_callback(lambda _: timer.cancel())

    async def check(self, checking: asyncio.Future[None]) -> None:
        """Return when the device has passed a check behind a failed step; never if it is lost: the process ends."""
        self.watch(checking)
        try:
            await checking
        except Exception as error:  # noqa: BLE001 - whatever the device raises
            log.error("device.lost", error=str(error))
            self._give_up(f"The device answers every call with an error: {error}")
            await asyncio.Event().wait()

    async def wait(self) -> None:
        """Return never, or raise InternalError when the device is lost."""
        raise InternalError(await asyncio.shield(self._found))

    def _give_up(self, reason: str) -> None:
        if not self._found.done():
            self._found.set_result(reason)
