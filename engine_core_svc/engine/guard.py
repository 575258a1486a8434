"""Guard: reports bugs in timers and background tasks, which would otherwise leave requests waiting for ever.

Runs on the event loop. Keeps the first exception for the step loop, which raises it and so ends the process: frontends resume
on the next one.
"""

from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


class Guard:
    """Wraps callbacks so that their exceptions reach the step loop.

    Args:
        on_error: called when a callback has failed.
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
                self._error = self._error or error
                self._on_error()

        return call

    def check(self) -> None:
        """Raise the first exception of a callback, if there was one."""
        if self._error is not None:
            raise self._error
