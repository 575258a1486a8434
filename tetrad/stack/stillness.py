"""Stillness: distinguishes a process that makes no progress (stopped or deadlocked) from one that is busy, starting or ending.

Used for a child that does not answer. A process that uses CPU time may still answer; a process without an open socket is still
starting, or has closed its server. Linux only: on other systems no process counts as still.
"""

import contextlib
import os
import socket
from pathlib import Path

_UNIX = "unix:"
_USER_TIME, _SYSTEM_TIME = 11, 12
"""Indexes of fields of /proc/PID/stat, counted after the process name."""


class Stillness:
    """Checks one process repeatedly for progress.

    Args:
        pid: the id of the process.
        address: the address of its server.
    """

    def __init__(self, pid: int, address: str) -> None:
        self._pid = pid
        self._address = address
        self._cpu_ticks: int | None = None

    def look(self) -> bool:
        """Return whether the process listens and has used no CPU time since the last call; False at the first call."""
        before, self._cpu_ticks = self._cpu_ticks, cpu_ticks(self._pid)
        return before is not None and before == self._cpu_ticks and _is_listening(self._address)


def cpu_ticks(pid: int) -> int | None:
    """Return the CPU time that a process has used, in the system's clock ticks; None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])
    except (OSError, IndexError, ValueError):
        return None


def _is_listening(address: str) -> bool:
    """Return whether any process listens on a Unix socket."""
    if not address.startswith(_UNIX):
        return False
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fsencode(address.removeprefix(_UNIX)))
        except BlockingIOError:  # the process accepts no connections, and its queue is full
            return True
        except OSError:
            return False
        return True
