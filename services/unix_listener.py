"""UnixListener: a listening Unix socket at a path that users chose, for the public HTTP server.

Replaces the socket that a killed process left, and refuses the one of a process that listens. Who may connect is decided by
the directory of the path and the umask of the process. Knows nothing of HTTP.
"""

import contextlib
import socket
import stat
from pathlib import Path

from tetrad.services.errors import Unavailable

MAX_PATH_BYTES = 107
"""The longest path of a Unix socket on Linux."""
# A process that listens accepts at once; one whose queue is full lets callers wait.
_CONNECT_TIMEOUT_S = 1.0


class UnixListener:
    """A socket that listens from the start: connections wait until a server accepts them.

    Args:
        path: where to listen.

    Attributes:
        socket: the listening socket. Whoever serves on it may close it.

    Raises:
        Unavailable: another process listens there, the path is no socket, or it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        _remove_stale(path)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.bind(str(path))
            self.socket.listen()
            self._inode = path.stat().st_ino
        except OSError as error:
            self.socket.close()
            raise _cannot_listen(path, error.strerror or str(error)) from error

    def close(self) -> None:
        """Close the socket and remove its path, unless another process has replaced it. Safe to call twice."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._inode = -1
        self.socket.close()


def _remove_stale(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_listen(path, error.strerror or str(error)) from error
    if not stat.S_ISSOCK(mode):
        raise _cannot_listen(path, "the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(OSError):  # the bind reports a path that cannot be removed
                path.unlink()
            return
        except TimeoutError:
            pass
        except OSError as error:
            raise _cannot_listen(path, error.strerror or str(error)) from error
    raise _cannot_listen(path, "another server listens there")


def _cannot_listen(path: Path, why: str) -> Unavailable:
    return Unavailable(f"Cannot listen on unix:{path}: {why}. Choose another path with --uds.")
