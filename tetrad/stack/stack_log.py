"""StackLog: the last log lines of the services of a local stack, in a file beside its sockets.

Written by the local stack, read by `tetrad logs`. A line is "SERVICE | TEXT". Two files of limited size, the older one named
`log.1`; they are removed with the stack's directory. A line that cannot be written, for example on a full disk, is skipped.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

_FILE, _OLDER = "log", "log.1"
_MAX_BYTES = 4 << 20
_SEPARATOR = " | "

OnLine = Callable[[str], None]
"""Takes a line without its line break."""


class StackLog:
    """Writes the log of one stack. Used on the event loop of its supervisor.

    Args:
        directory: the directory of the stack.
        max_bytes: the size at which a new file is begun.
    """

    def __init__(self, directory: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._path = log_path(directory)
        self._max_bytes = max_bytes
        self._size_bytes = 0

    def of(self, service: str) -> OnLine:
        """Return a function that writes a line of a service."""
        return lambda line: self.write(service, line)

    def write(self, service: str, line: str) -> None:
        """Append a line of a service; begin a new file if this one is full."""
        text = f"{service}{_SEPARATOR}{line}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            if self._size_bytes + len(text) > self._max_bytes:
                with contextlib.suppress(FileNotFoundError):  # a cleaner of /tmp has removed it
                    self._path.replace(self._path.with_name(_OLDER))
                self._size_bytes = 0
            with self._path.open("ab") as file:
                file.write(text)
            self._size_bytes += len(text)


def log_path(directory: Path) -> Path:
    """Return the path of the file with the newest lines."""
    return directory / _FILE


def read_lines(directory: Path) -> list[str]:
    """Return all lines of both files, the oldest first; empty if there is no log."""
    lines = []
    for name in (_OLDER, _FILE):
        with contextlib.suppress(OSError):
            lines += (directory / name).read_text(errors="replace").splitlines()
    return lines


def parts_of(line: str) -> tuple[str, str]:
    """Return the name of the service that wrote a line, and the line's text."""
    service, _, text = line.partition(_SEPARATOR)
    return service, text
