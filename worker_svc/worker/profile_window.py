"""Profile window: lets a profiler record some of the steps that follow StartProfile, instead of all until StopProfile.

Owned by the compute thread, which calls `note_step` before each step. The trace of a window that ends by itself is written
between two steps, and StopProfile returns its path. Without a window it passes the orders on.
"""

from dataclasses import dataclass
from pathlib import Path

from tetrad.services.errors import AlreadyExists, NotFound, TetradError
from tetrad.worker_svc.worker.profiler import Profiler


@dataclass(slots=True)
class _Window:
    """A window: steps to wait for, and steps to record, until 0; None: no limit."""

    prefix: str
    delay: int
    num_left: int | None
    is_recording: bool = False


class ProfileWindow:
    """A profiler whose recordings may begin later and end by themselves.

    Args:
        profiler: makes the recordings.
    """

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._window: _Window | None = None
        self._ended: Path | TetradError | None = None

    def start(self, prefix: str, delay: int = 0, most: int = 0) -> None:
        """Start a recording after `delay` steps, which ends after `most` steps; 0: at StopProfile.

        Raises AlreadyExists during a recording, or before the end of a window was asked for; otherwise see Profiler.
        """
        if self._window is not None or self._ended is not None:
            raise AlreadyExists("A profile is being recorded; call StopProfile first.")
        if not delay:
            self._profiler.start(prefix)
        if delay or most:
            self._window = _Window(prefix, delay, most or None, is_recording=not delay)

    def stop(self) -> Path:
        """End the recording and return the path of its trace; see Profiler. NotFound, too, if no step was recorded."""
        window, self._window = self._window, None
        ended, self._ended = self._ended, None
        if isinstance(ended, TetradError):
            raise ended
        if ended is not None:
            return ended
        if window is not None and not window.is_recording:
            raise NotFound(f"The profile had recorded no step: {window.delay} more were to run before it.")
        return self._profiler.stop()

    def note_step(self) -> None:
        """Note that a step is about to run; begin or end the recording if its window does."""
        if self._window is not None:
            try:
                self._move(self._window)
            except TetradError as error:
                self._window, self._ended = None, error  # the step runs all the same; StopProfile answers with it

    def _move(self, window: _Window) -> None:
        if window.delay:
            window.delay -= 1
            return
        if not window.is_recording:
            self._profiler.start(window.prefix)
            window.is_recording = True
        if window.num_left == 0:
            self._window, self._ended = None, self._profiler.stop()
        elif window.num_left is not None:
            window.num_left -= 1
