"""StackLog: the last lines that the services of a local stack wrote, as a file beside its sockets.

Written by the local stack, read by `tetrad logs`. A line is "SERVICE | TEXT". Two files of limited size, the older one named
`log.1`; they end with the stack's directory. Losing a line, as on a full disk, costs the line.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

_FILE, _OLDER = "log", "log.1"
_MAX_BYTES = 4 << 20
_SEPARATOR = " | "

OnLine = Callable[[str], None]
"""Takes a line without its end."""


class StackLog:
    """The log of one stack. Used on the event loop of its supervisor.

    Args:
        directory: of the stack.
        max_bytes: size at which a new file is begun.
    """

    def __init__(self, directory: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._path = log_path(directory)
        self._max_bytes = max_bytes
        self._size_bytes = 0

    def of(self, service: str) -> OnLine:
        """Return a function that stores a line of a service."""
        return lambda line: self.write(service, line)

    def write(self, service: str, line: str) -> None:
        """Keep a line."""
        text = f"{service}{_SEPARATOR}{line}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            if self._size_bytes + len(text) > self._max_bytes:
                self._path.replace(self._path.with_name(_OLDER))
                self._size_bytes = 0
            with self._path.open("ab") as file:
                file.write(text)
            self._size_bytes += len(text)


def log_path(directory: Path) -> Path:
    """Return the file of the newest lines."""
    return directory / _FILE


def read_lines(directory: Path) -> list[str]:
    """Return the lines that are kept, the oldest first; none where there is no log."""
    lines = []
    for name in (_OLDER, _FILE):
        with contextlib.suppress(OSError):
            lines += (directory / name).read_text(errors="replace").splitlines()
    return lines


def parts_of(line: str) -> tuple[str, str]:
    """Return the service that wrote a line, and its text."""
    service, _, text = line.partition(_SEPARATOR)
    return service, text
