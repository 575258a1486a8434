"""LibraryStderr: writes the library's lines to a program's stderr without blocking the event loop.

The stderr of a program that uses the library may block: a stopped terminal or a full pipe may delay only the program's own
lines, not the supervision of services. If the program has replaced `sys.stderr`, lines are written to its replacement.
"""

import atexit
import contextlib
import sys

from tetrad.services.output.nonblocking_output import NonBlockingOutput, OnDropped

_EXIT_TIMEOUT_S = 0.5


class LibraryStderr:
    """A text output with `write` and `flush`. Any thread may write.

    Args:
        on_dropped: called with the number of dropped lines.
    """

    def __init__(self, on_dropped: OnDropped) -> None:
        self._on_dropped = on_dropped
        self._output: NonBlockingOutput | None = None

    def write(self, text: str) -> int:
        """Write text, now or when the output accepts it."""
        output = self._own_output()
        if output is not None:
            return output.write(text.encode(errors="backslashreplace"))
        if sys.stderr is not None:
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the program's stream, if lines are written to it."""
        if self._own_output() is None and sys.stderr is not None:
            sys.stderr.flush()

    def _own_output(self) -> NonBlockingOutput | None:
        """Return the non-blocking output to the program's stderr; None if it has replaced its stderr, or has none."""
        stream = sys.__stderr__
        if stream is None or sys.stderr is not stream:
            return None
        if self._output is None:
            with contextlib.suppress(OSError, ValueError):  # closed
                self._output = NonBlockingOutput(stream.fileno(), self._on_dropped)
                atexit.register(self._output.wait_written, _EXIT_TIMEOUT_S)
        return self._output
