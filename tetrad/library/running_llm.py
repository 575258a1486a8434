"""RunningLLM: an AsyncLLM on its own event loop, for blocking programs.

Shared by LLM and LLMEngine, and by the engine that an LLM shows. Closes its services with its last user, and at the end of the
interpreter, where `__del__` is not certain.
"""

import atexit
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tetrad.library.async_llm import AsyncLLM
from tetrad.library.event_loop_thread import EventLoopThread

T = TypeVar("T")

# Objects that are alive, and the loops on which the services of collected ones are ending.
_RUNNING: "weakref.WeakSet[RunningLLM]" = weakref.WeakSet()
_ENDING: list[EventLoopThread] = []
_LONGEST_END_S = 10.0


class RunningLLM:
    """Services that take requests.

    Args:
        make: returns the AsyncLLM; called on the loop that it will belong to.

    Attributes:
        loop: of the AsyncLLM.
        llm: starts and ends the services.
        frontend: takes requests.

    Raises what starting the services raises.
    """

    def __init__(self, make: Callable[[], AsyncLLM]) -> None:
        _wait_for_ends()  # their memory is free then
        self.loop = EventLoopThread()
        self.llm = self.loop.run(_called(make))
        # A collected object ends its services beside the thread that collects it, which may be any, an event loop's too.
        self._finalizer = weakref.finalize(self, _begin_close, self.llm, self.loop)
        self._finalizer.atexit = False  # _close_all waits
        _RUNNING.add(self)
        try:
            self.frontend = self.loop.run(self.llm.start())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result or raise its error."""
        return self.loop.run(work)

    def close(self) -> None:
        """End the services that were started here, within 5 s."""
        if self._finalizer.detach() is not None:
            _close(self.llm, self.loop)


async def _called(make: Callable[[], AsyncLLM]) -> AsyncLLM:
    return make()


def _begin_close(llm: AsyncLLM, loop: EventLoopThread) -> None:
    """End the services of a collected object; returns at once."""
    _ENDING.append(loop)
    loop.end_after(llm.close())


@atexit.register
def _close_all() -> None:
    """End the services of objects that are alive, and wait for those of collected ones."""
    with contextlib.ExitStack() as every:  # an error in one keeps no other from its end
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
