"""Watching: prints a text repeatedly until q or Ctrl-C; in a terminal over the previous text, otherwise below it."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

_MOST_KEYS = 1024
_OVER = "\x1b[H"
_END_OF_LINE, _END_OF_SCREEN = "\x1b[K", "\x1b[J"


def watch(render: Callable[[], str], interval_s: float, *, out: TextIO, keys: TextIO) -> None:
    """Write what `render` returns every `interval_s` seconds; return when q is pressed.

    Args:
        render: makes the text.
        interval_s: seconds between two updates.
        out: output of the text.
        keys: source of key presses; ignored if it is not a terminal.
    """
    with _key_by_key(keys) as reads_keys:
        if out.isatty():
            out.write(_OVER + _END_OF_SCREEN)
        while True:
            _write(render(), out)
            if _is_ended(keys if reads_keys else None, interval_s):
                return


def _write(text: str, out: TextIO) -> None:
    if out.isatty():
        # Each line overwrites the old one: clearing the screen first would make it flicker.
        lines = (f"{line}{_END_OF_LINE}\n" for line in text.splitlines())
        out.write(_OVER + "".join(lines) + _END_OF_SCREEN)
    else:
        out.write(text + "\n")
    out.flush()


def _is_ended(keys: TextIO | None, interval_s: float) -> bool:
    """Wait for `interval_s` seconds and return False; if q is pressed, return True at once."""
    until = time.monotonic() + interval_s
    while (left_s := until - time.monotonic()) > 0:
        if keys is None:
            time.sleep(left_s)
        elif select.select([keys], [], [], left_s)[0]:
            # All keys at once, past the buffer of `keys`, which select would not see.
            pressed = os.read(keys.fileno(), _MOST_KEYS)
            if not pressed or b"q" in pressed.lower():
                return True
    return False


@contextlib.contextmanager
def _key_by_key(keys: TextIO) -> Iterator[bool]:
    """Let a terminal report each key at once, without echo, inside the context; yield whether this is possible."""
    if sys.platform == "win32" or not keys.isatty():
        yield False
        return
    import termios
    import tty

    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield True
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
