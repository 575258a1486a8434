"""RunningLLM: an AsyncLLM on its own event loop, for blocking programs.

Used by LLM and LLMEngine; LLM.llm_engine shares that of its LLM. It closes its services when its last user is collected, and at
the end of the interpreter, when `__del__` may not be called.
"""

import atexit
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tetrad.library.async_llm import AsyncLLM
from tetrad.library.event_loop_thread import EventLoopThread
from tetrad.services.errors import Unavailable

T = TypeVar("T")

# The existing objects, and the event loops on which the services of collected objects are ending.
_RUNNING: "weakref.WeakSet[RunningLLM]" = weakref.WeakSet()
_ENDING: list[EventLoopThread] = []
_LONGEST_END_S = 10.0


class RunningLLM:
    """An AsyncLLM with running services, and its event loop.

    Args:
        make: returns the AsyncLLM; called on its event loop.

    Attributes:
        loop: event loop of the AsyncLLM.
        llm: starts and ends the services.
        frontend: runs the requests.

    Raises the errors of AsyncLLM.start.
    """

    def __init__(self, make: Callable[[], AsyncLLM]) -> None:
        _wait_for_ends()  # frees the memory of ended services
        self.loop = EventLoopThread()
        self.llm = self.loop.run(_called(make))
        # A collected object must not block the collecting thread, which may be an event loop's: its services end on their loop.
        self._finalizer = weakref.finalize(self, _begin_close, self.llm, self.loop)
        self._finalizer.atexit = False  # _close_all waits
        _RUNNING.add(self)
        try:
            self.frontend = self.loop.run(self.llm.start())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result or raise its error; Unavailable if this object was closed."""
        if not self._finalizer.alive:
            work.close()
            raise Unavailable("This LLM was closed.")
        return self.loop.run(work)

    def close(self) -> None:
        """Stop the services that this object started, within 5 s."""
        if self._finalizer.detach() is not None:
            _close(self.llm, self.loop)


async def _called(make: Callable[[], AsyncLLM]) -> AsyncLLM:
    return make()


def _begin_close(llm: AsyncLLM, loop: EventLoopThread) -> None:
    """Start to end the services of a collected object; returns at once."""
    _ENDING.append(loop)
    loop.end_after(llm.close())


@atexit.register
def _close_all() -> None:
    """End the services of existing objects, and wait for the end of those of collected objects."""
    with contextlib.ExitStack() as every:  # an error of one does not prevent the end of the others
        every.callback(_wait_for_ends)
        for running in list(_RUNNING):
            every.callback(running.close)


def _wait_for_ends() -> None:
    while _ENDING:
        _ENDING.pop().join(_LONGEST_END_S)


def _close(llm: AsyncLLM, loop: EventLoopThread) -> None:
    try:
        loop.run(llm.close())
    finally:
        loop.close()
