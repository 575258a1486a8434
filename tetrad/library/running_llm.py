"""RunningLLM: an AsyncLLM on its own event loop, for blocking programs.

Shared by LLM and LLMEngine, and by the engine that an LLM shows. Closes its services with its last user, and at the end of the
interpreter, where `__del__` is not certain.
"""

import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tetrad.library.async_llm import AsyncLLM
from tetrad.library.event_loop_thread import EventLoopThread

T = TypeVar("T")


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
        self.loop = EventLoopThread()
        self.llm = self.loop.run(_called(make))
        self._finalizer = weakref.finalize(self, _close, self.llm, self.loop)
        try:
            self.frontend = self.loop.run(self.llm.start())
        except BaseException:
            self._finalizer()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result or raise its error."""
        return self.loop.run(work)

    def close(self) -> None:
        """End the services that were started here, within 5 s."""
        self._finalizer()


async def _called(make: Callable[[], AsyncLLM]) -> AsyncLLM:
    return make()


def _close(llm: AsyncLLM, loop: EventLoopThread) -> None:
    try:
        loop.run(llm.close())
    finally:
        loop.close()
