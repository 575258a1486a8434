"""Aside: runs work that blocks beside an event loop, in a thread that nothing waits for."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


async def run_aside(work: Callable[[], Result]) -> Result:
    """Return the result of work that blocks. A cancelled caller, and the end of the process, do not wait for it.

    They would wait for a thread of `asyncio.to_thread`, and so a signal for the end of a download.
    """
    result: Future[Result] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised to the caller
            result.set_exception(error)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await asyncio.wrap_future(result)
