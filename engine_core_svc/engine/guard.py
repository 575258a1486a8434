"""Guard: reports bugs in timers and background tasks, which would otherwise leave requests waiting for ever.

Runs on the event loop. Keeps the first exception for the step loop, which raises it and so ends the process: frontends resume
on the next one.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec

P = ParamSpec("P")


class Guard:
    """Wraps callbacks and watches tasks so that their exceptions reach the step loop.

    Args:
        on_error: called when a callback or a task has failed.
    """

    def __init__(self, on_error: Callable[[], None]) -> None:
        self._on_error = on_error
        self._error: Exception | None = None

    def wrap(self, callback: Callable[P, None]) -> Callable[P, None]:
        """Return a callback that never raises: it keeps an exception for `check`."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - raised again by `check`
                self._keep(error)

        return call

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Keep the task's exception for `check`, if it ends with one."""
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._keep(error)

    def _keep(self, error: Exception) -> None:
        self._error = self._error or error
        self._on_error()

    def check(self) -> None:
        """Raise the first exception of a callback or task, if there was one."""
        if self._error is not None:
            raise self._error
