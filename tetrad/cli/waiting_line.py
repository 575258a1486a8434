"""WaitingLine: shows on a terminal's stderr what a command waits for and since when, until there is output."""

import asyncio
import sys
import threading
import time
from types import TracebackType
from typing import Self

_INTERVAL_S = 1.0
_CLEAR = "\r\x1b[K"


class WaitingLine:
    """The line. Without a terminal it shows nothing. Use as an async context manager.

    Args:
        what: the text after the seconds.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._started_at = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        # Guards the line on the terminal: `end` may run in the thread of the output.
        self._lock, self._is_over = threading.Lock(), False

    async def __aenter__(self) -> Self:
        if sys.stderr.isatty():
            self._task = asyncio.create_task(self._show())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        """Remove the line, for output that follows at once; the first call counts. Any thread may call it."""
        with self._lock:
            if self._task is not None and not self._is_over:
                print(_CLEAR, end="", file=sys.stderr, flush=True)
            self._is_over = True

    async def _show(self) -> None:
        while True:
            self._print()
            await asyncio.sleep(_INTERVAL_S)

    def _print(self) -> None:
        """Print the line as it is now, unless it is over."""
        with self._lock:
            if not self._is_over:
                passed_s = time.monotonic() - self._started_at
                print(f"{_CLEAR}[{passed_s:5.1f} s] {self._what}", end="", file=sys.stderr, flush=True)
