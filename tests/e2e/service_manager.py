"""A service manager, as far as `tetrad serve` knows it: the socket that NOTIFY_SOCKET names, to which it reports its state."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator

import pytest

_TIMEOUT_S = 60


class ServiceManager:
    """The receiving end. `states`: what has been received so far by `wait_for`."""

    def __init__(self, receiver: socket.socket) -> None:
        self.states: list[str] = []
        self._receiver = receiver

    def wait_for(self, number: int) -> list[str]:
        """Return the first `number` states."""
        while len(self.states) < number:
            self.states.append(self._receiver.recv(4096).decode().partition("\n")[0])
        return self.states[:number]


@contextlib.contextmanager
def service_manager() -> Iterator[ServiceManager]:
    """Receive the states of what is started in the block."""
    with (
        tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        pytest.MonkeyPatch.context() as patch,
    ):
        receiver.bind(f"{directory}/notify")
        receiver.settimeout(_TIMEOUT_S)
        patch.setenv("NOTIFY_SOCKET", f"{directory}/notify")
        yield ServiceManager(receiver)
