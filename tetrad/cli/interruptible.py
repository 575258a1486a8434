"""Interruptible: runs a coroutine such that Ctrl-C always ends it.

asyncio converts Ctrl-C to a cancellation of the main task. A call of grpc.aio that completes at that moment returns its answer,
and the cancellation is lost: a loop of such calls would not end.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_interruptible(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine and return its result; KeyboardInterrupt after Ctrl-C, even if the coroutine has succeeded."""
    return asyncio.run(_with_interrupts(coroutine))


async def _with_interrupts(coroutine: Coroutine[Any, Any, Result]) -> Result:
    result = await coroutine
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    if task.cancelling():
        raise asyncio.CancelledError
    return result
