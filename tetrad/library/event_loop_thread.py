"""EventLoopThread: runs an event loop in a background thread, for callers that block.

The bridge between the blocking classes (LLM, LLMEngine) and the async ones. Knows nothing of the coroutines it runs.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class EventLoopThread:
    """Runs coroutines for other threads. Its thread is a daemon: it does not keep the interpreter running."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="tetrad", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result or raise its error; an interrupt of the caller cancels it."""
        call = _Call(work)
        # An interrupt may come at any moment: also when the work is scheduled, and its future not yet returned.
        try:
            return asyncio.run_coroutine_threadsafe(call.run(), self._loop).result()
        except BaseException:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call.cancel)
            raise

    def close(self) -> None:
        """Stop the loop and its thread; running tasks are cancelled."""
        self.end_after(_nothing())
        self.join()

    def end_after(self, work: Coroutine[Any, Any, Any]) -> None:
        """Schedule `work` as the last task of the loop and return at once. May be called on any thread, the loop's own too."""
        if self._loop.is_closed():
            work.close()
            return
        self._loop.call_soon_threadsafe(self._begin_end, work)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the loop has ended, for at most `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def _begin_end(self, work: Coroutine[Any, Any, Any]) -> None:
        self._last = self._loop.create_task(self._end_after(work))

    async def _end_after(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        finally:
            await _cancel_others()
            self._loop.stop()


class _Call(Generic[T]):
    """A coroutine that may be cancelled before its task begins; both methods run on the loop."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def run(self) -> T:
        if self._is_cancelled:
            self._work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._work

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _nothing() -> None:
    pass


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
