"""Together: runs the same call to all ranks of a group at the same time; no call continues after the failure of another."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """Run calls at the same time and return their answers in order; the first error cancels the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
