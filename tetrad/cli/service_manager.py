"""ServiceManager: reports the state of `tetrad serve` to systemd (`Type=notify`) over the socket that NOTIFY_SOCKET names."""

import contextlib
import os
import socket
from typing import Self

_VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """Sends one datagram for each change of state. A missing manager is not an error.

    Args:
        address: address of the socket; "@name" is an abstract one. None: no service manager, nothing is sent.
    """

    def __init__(self, address: str | None) -> None:
        self._address = f"\0{address[1:]}" if address and address.startswith("@") else address

    @classmethod
    def of_environment(cls) -> Self:
        """Return the manager that NOTIFY_SOCKET names, and remove the variable, so that child processes do not use it."""
        return cls(os.environ.pop(_VARIABLE, None))

    def ready(self) -> None:
        """Report that requests are accepted."""
        self._send("READY=1\nSTATUS=Ready")

    def reloading(self) -> None:
        """Report a restart of the services; `ready` follows."""
        self._send("RELOADING=1\nSTATUS=Restarting every service")

    def stopping(self) -> None:
        """Report the start of an orderly end."""
        self._send("STOPPING=1\nSTATUS=Stopping")

    def _send(self, state: str) -> None:
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto(state.encode(), self._address)
