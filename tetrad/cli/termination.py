"""Termination: ends a command in order at SIGTERM, and at SIGHUP when its terminal is closed.

By default both end a process at once: files of a local stack would stay, a server would go on to record a profile, and so would
a program that downloads a model. The first process of a container would ignore them.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a command that was ended so."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def exit_at_sigterm() -> Iterator[None]:
    """Exit by an exception at such a signal; at the end, set the handlers from before again. For code without an event loop."""

    def exit_(*_: object) -> None:
        sys.exit(TERMINATED)

    before = {number: signal.signal(number, exit_) for number in _handled()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cancel_at_sigterm() -> None:
    """Cancel the current task at such a signal, until its event loop ends."""
    task = asyncio.current_task()
    assert task is not None, "called in a task"
    for number in _handled():
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _handled() -> list[signal.Signals]:
    """Return the signals that the caller of the command lets it have; nohup ignores SIGHUP."""
    return [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
