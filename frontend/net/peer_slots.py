"""PeerSlots: sums counters over all frontends of one port in a file that each of them maps into memory.

Each process locks a slot for as long as it lives; the operating system releases the lock with the process. A process writes
only its own slot; the total is the sum of all slots. The next `forget_dead` of another process, or the next owner of the slot,
clears the numbers of a killed process. Linux only. One event loop.
"""

import fcntl
import mmap
import os
import struct
from pathlib import Path

from tetrad.services.errors import Unavailable

NUM_SLOTS = 128
_NUM_VALUES = 2
_VALUE_BYTES = 8
_SIZE = NUM_SLOTS * _NUM_VALUES * _VALUE_BYTES
_LOCK = struct.Struct("hhqqi4x")
"""The system's struct flock: type, origin of the offset, offset, number of bytes, process id."""


class PeerSlots:
    """The slots of one port, one of which belongs to this process.

    Args:
        path: path of the file, which need not exist.

    Attributes:
        number: index of this process's slot, from 0; no other running process has it.

    Raises:
        Unavailable: all slots are in use, or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._fd = _opened(path)
        self._map = mmap.mmap(self._fd, _SIZE)
        self._values = memoryview(self._map).cast("q")
        self.number = self._take()
        self.publish(0, 0)

    def publish(self, num_requests: int, num_tokens: int) -> None:
        """Write this process's numbers into its slot."""
        first = self.number * _NUM_VALUES
        self._values[first], self._values[first + 1] = num_requests, num_tokens

    def others(self) -> tuple[int, int]:
        """Return the requests and the tokens of all other processes together."""
        first = self.number * _NUM_VALUES
        requests, tokens = sum(self._values[::_NUM_VALUES]), sum(self._values[1::_NUM_VALUES])
        return requests - self._values[first], tokens - self._values[first + 1]

    def forget_dead(self) -> None:
        """Clear the numbers of processes that have ended without clearing them."""
        for number in range(NUM_SLOTS):
            first = number * _NUM_VALUES
            if (self._values[first] or self._values[first + 1]) and number != self.number and not self._is_held(number):
                self._values[first] = self._values[first + 1] = 0

    def close(self) -> None:
        """Clear and release the slot. Further calls do nothing."""
        if self._fd >= 0:
            self.publish(0, 0)
            self._values.release()
            self._map.close()
            os.close(self._fd)
            self._fd = -1

    def _take(self) -> int:
        for number in range(NUM_SLOTS):
            try:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(number))
            except OSError:
                continue
            return number
        os.close(self._fd)
        raise Unavailable(f"{NUM_SLOTS} frontends share this port already; no more can.")

    def _is_held(self, number: int) -> bool:
        found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _lock(number))
        return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _opened(path: Path) -> int:
    """Return the descriptor of the file. It has room for all slots: on a full disk, a write to a mapped hole kills the process.

    Raises:
        Unavailable: it cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _SIZE)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        text = f"The file {path}, which the frontends of a port share, cannot be written: {error.strerror}."
        raise Unavailable(text) from error
    return fd


def _lock(number: int) -> bytes:
    return _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
