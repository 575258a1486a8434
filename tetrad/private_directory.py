"""PrivateDirectory: where a local stack has its sockets; gone with the process that made it.

Knows paths and a lock, nothing of what is in the directory. A process that is killed cannot tidy up: the next one to make a
directory removes those whose lock nobody holds any more, which the system tells for certain.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

# As short as may be: the path of a Unix socket has at most 107 bytes, and TMPDIR may be long.
_PARENT = Path("/tmp")
_PREFIX = "tetrad-"
_LOCK = "lock"


class PrivateDirectory:
    """A new directory that only this user can enter. `path` exists until `remove`."""

    def __init__(self) -> None:
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PARENT))  # mode 0700
        unlocked = self.path / f"{_LOCK}.new"
        self._lock_fd = os.open(unlocked, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        # Under its name only once it is held: a directory without a lock is one that is being made.
        unlocked.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the directory and what is in it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def private_directories() -> list[Path]:
    """Return the directories of this user's processes that live."""
    return [path for path in _directories() if _is_held(path)]


def _directories() -> list[Path]:
    paths = []
    for path in sorted(_PARENT.glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError):  # it may go at any moment
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
