"""Lost device: detects that this process can no longer use the device, because it hangs in a step or fails every call.

Runs on the event loop. Only a new process can use the device again, so the service ends. Three cases are detected:

- A hang: an engine core leaves a worker whose step takes too long, but the step itself cannot be cancelled, and the next
  engine core would wait for it forever. The compute thread runs calls in order, so a stream's last call ends after its steps.
- A function of the program that started the worker (worker/functions.py) still runs after its caller's timeout.
- A lost context: after an illegal memory access, CUDA answers every call with the same error. Steps of other requests would
  fail too, and crash isolation would suspect these requests.
"""

import asyncio

from tetrad.services.errors import InternalError
from tetrad.services.log import get_logger
from tetrad.services.timers.running_time import RunningTimer

log = get_logger()

_FUNCTION_GRACE_S = 1.0


class LostDevice:
    """Watches the ends of streams, and the checks after failed steps.

    Args:
        timeout_s: time limit for the end of a stream and for a check, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def watch(self, ending: asyncio.Future[None]) -> None:
        """Report the device lost if a stream's last call, or a check, does not end within the time limit."""
        self._expect(ending, self._timeout_s, "The device has been busy with a step for {:g} s after its stream ended.")

    def watch_function(self, ending: asyncio.Future[None]) -> None:
        """Report the device lost if a function whose caller has left does not end soon: it blocks the steps."""
        self._expect(ending, _FUNCTION_GRACE_S, "A function of the program runs {:g} s after its call ended.")

    def _expect(self, ending: asyncio.Future[None], timeout_s: float, reason: str) -> None:
        timer = RunningTimer(timeout_s, lambda: self._give_up(reason.format(timeout_s)))
        ending.add_done_callback(lambda _: timer.cancel())

    async def check(self, checking: asyncio.Future[None]) -> None:
        """Wait for a check after a failed step. If the device is lost, report it and never return: the process ends."""
        self.watch(checking)
        try:
            await checking
        except Exception as error:  # noqa: BLE001 - a device may raise any error
            log.error("device.lost", error=str(error))
            self._give_up(f"The device answers every call with an error: {error}")
            await asyncio.Event().wait()

    async def wait(self) -> None:
        """Wait until the device is lost, and raise InternalError then; never return."""
        raise InternalError(await asyncio.shield(self._found))

    def _give_up(self, reason: str) -> None:
        if not self._found.done():
            self._found.set_result(reason)
