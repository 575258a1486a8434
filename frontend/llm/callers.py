"""Callers: the tasks of the calls that use a model, so that unloading the model can wait for them.

A call uses its model before, between and after its requests, for example to render a chat or to count tokens. The model
directory notes each call that finds the model; each HTTP or gRPC call is an asyncio task. Used on one event loop.
"""

import asyncio
from typing import Any
from weakref import WeakSet


class Callers:
    """The tasks of the calls that use one model."""

    def __init__(self) -> None:
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def note(self) -> None:
        """Add the current task."""
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)

    async def wait_done(self) -> None:
        """Wait until every noted task has ended."""
        while tasks := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(tasks)
