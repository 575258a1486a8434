"""Owners: checks whether the process that generates a response is running, for frontends that share a file of responses.

Called by the store's thread. Each owner has a number, and holds a lock on that byte of an empty file: the operating system
releases the lock when the process ends. Knows no responses.
"""

import contextlib
import fcntl
import os
import secrets
import struct
from collections.abc import Iterator

# struct flock: type, whence, start, length, process id (0: the lock belongs to the open file, not to the process).
_FLOCK = "hhqqi0q"
_NUMBER_BITS = 62  # an offset in a file is a signed number of 64 bits


class Owners:
    """One owner, and its view of the others.

    Args:
        path: the file of locks; created if it does not exist.

    Attributes:
        own: the number of this owner.

    Raises:
        OSError: the file cannot be opened or locked.
    """

    def __init__(self, path: str) -> None:
        self.own = secrets.randbits(_NUMBER_BITS)
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            self._lock(fcntl.F_OFD_SETLK, self.own)
        except OSError:
            os.close(self._file)
            raise

    def lives(self, owner: int) -> bool:
        """Return whether the process of `owner` runs and has not closed its Owners; False for the own number."""
        kind, *_ = struct.unpack(_FLOCK, self._lock(fcntl.F_OFD_GETLK, owner))
        return bool(kind != fcntl.F_UNLCK)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the exclusive lock of all owners inside the context; BlockingIOError if another owner holds it."""
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the lock of this owner."""
        os.close(self._file)

    def _lock(self, operation: int, place: int) -> bytes:
        return fcntl.fcntl(self._file, operation, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
