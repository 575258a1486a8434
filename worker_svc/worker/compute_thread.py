"""Compute thread: the only thread that uses the device. The event loop submits calls and awaits them; they run in order.

It is a daemon thread, so a device that hangs in a call does not keep the process from ending.
"""

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ComputeThread:
    """A queue of calls and the thread that runs them; the thread sleeps while the queue is empty.

    Args:
        name: name of the thread.
        niceness: added to the process's niceness, where the system has a niceness of threads (Linux).
    """

    def __init__(self, name: str = "compute", *, niceness: int = 0) -> None:
        self._calls: SimpleQueue[tuple[asyncio.Future[Any] | None, Callable[[], Any]] | None] = SimpleQueue()
        self.is_closed = False
        self._niceness = niceness
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Queue a call and return its future; cancelling the future before the call begins drops it. On the event loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((future, partial(call, *args, **kwargs)))
        return future

    def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call after the queued ones and return its result; on any thread except this one and the event loop's."""
        return self.queue(call, *args, **kwargs).result()

    def queue(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Queue a call and return its future; on any thread."""
        done = concurrent.futures.Future[T]()

        def settle() -> None:
            try:
                done.set_result(call(*args, **kwargs))
            except BaseException as failure:  # noqa: BLE001 - passed to the caller
                done.set_exception(failure)

        self._calls.put((None, settle))
        return done

    def close(self) -> None:
        """Drop the queued calls; the running call ends by itself."""
        self.is_closed = True
        try:
            while (item := self._calls.get_nowait()) is not None:
                if item[0] is not None:
                    item[0].cancel()
        except Empty:
            self._calls.put(None)

    def _run(self) -> None:
        if self._niceness and sys.platform == "linux":
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + self._niceness)
        while (item := self._calls.get()) is not None:
            future, call = item
            if future is None:
                call()
                del item, call
                continue
            if future.cancelled():
                continue
            result, error = None, None
            try:
                result = call()
            except BaseException as failure:  # noqa: BLE001 - the caller gets it
                error = failure
            with suppress(RuntimeError):  # the loop is closed, so no caller waits
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del item, future, call, result, error  # arguments and results must not live until the next call


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # which no future takes
        future.set_exception(RuntimeError("A call raised StopIteration.").with_traceback(error.__traceback__))
    else:
        future.set_exception(error)
