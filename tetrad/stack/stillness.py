"""Stillness: tells a process that stands still (stopped, or deadlocked) from one that is busy, starting or ending.

Used for a child that does not answer. A process that uses CPU time may still answer; one whose socket nobody holds is not up
yet, or has closed its server. Linux only: elsewhere no process is found still.
"""

import contextlib
import os
import socket
from pathlib import Path

_UNIX = "unix:"
_USER_TIME, _SYSTEM_TIME = 11, 12
"""Fields of /proc/PID/stat, counted behind the name."""


class Stillness:
    """Looks at one process again and again.

    Args:
        pid: of the process.
        address: of its server.
    """

    def __init__(self, pid: int, address: str) -> None:
        self._pid = pid
        self._address = address
        self._cpu_ticks: int | None = None

    def look(self) -> bool:
        """Return whether the process listens and has used no CPU time since the last look; False the first time."""
        before, self._cpu_ticks = self._cpu_ticks, cpu_ticks(self._pid)
        return before is not None and before == self._cpu_ticks and _is_listening(self._address)


def cpu_ticks(pid: int) -> int | None:
    """Return the CPU time that a process has used, in the system's ticks; None if that is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])
    except (OSError, IndexError, ValueError):
        return None


def _is_listening(address: str) -> bool:
    """Return whether a process holds the server's end of a Unix socket, whatever it does."""
    if not address.startswith(_UNIX):
        return False
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fsencode(address.removeprefix(_UNIX)))
        except BlockingIOError:  # it accepts nothing, and its queue is full
            return True
        except OSError:
            return False
        return True
