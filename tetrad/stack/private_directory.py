"""PrivateDirectory: the directory of a local stack's sockets, removed with the process that created it.

Knows paths and a lock, nothing about the content. A killed process cannot clean up: the next process that creates a directory
removes the directories whose file lock is free.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tetrad.services.errors import Unavailable

# As short as possible: the path of a Unix socket has at most 107 bytes, and TMPDIR may be long.
_PARENT = Path("/tmp")
_PREFIX = "tetrad-"
_LOCK = "lock"


class PrivateDirectory:
    """A new directory that only this user can enter. `path` exists until `remove`, unless somebody else removes it.

    Raises:
        Unavailable: it cannot be created, for example because /tmp is full.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        self._lock_fd = -1
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PARENT))  # mode 0700
        except OSError as error:
            raise _cannot_make(error) from error
        try:
            self._lock_fd = _lock(self.path)
        except OSError as error:
            self.remove()
            raise _cannot_make(error) from error

    def restore(self) -> None:
        """Create the directory again if it was removed; raise OSError if that fails."""
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
            before, self._lock_fd = self._lock_fd, _lock(self.path)
            os.close(before)

    def remove(self) -> None:
        """Remove the directory and its content. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def private_directories() -> list[Path]:
    """Return the directories of this user's running processes."""
    return [path for path in _directories() if _is_held(path)]


def held_since(directory: Path) -> float | None:
    """Return the Unix time in seconds at which its process created a directory; None: the directory is gone."""
    try:
        return (directory / _LOCK).stat().st_mtime
    except OSError:
        return None


def _lock(directory: Path) -> int:
    """Lock a new directory and return the file descriptor that holds the lock."""
    unlocked = directory / f"{_LOCK}.new"
    fd = os.open(unlocked, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    # The file gets its name only when its lock is held: a directory without a lock file is still being created.
    unlocked.rename(directory / _LOCK)
    return fd


def _cannot_make(error: OSError) -> Unavailable:
    return Unavailable(f"Cannot make a directory for the services' sockets in {_PARENT}: {error.strerror or error}.")


def _directories() -> list[Path]:
    paths = []
    for path in sorted(_PARENT.glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError):  # it may be removed at any moment
            if path.stat().st_uid == os.getuid() and (path / _LOCK).is_file():
                paths.append(path)
    return paths


def _is_held(directory: Path) -> bool:
    try:
        with (directory / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _remove_abandoned() -> None:
    for path in _directories():
        if not _is_held(path):
            shutil.rmtree(path, ignore_errors=True)
