"""Startup: what commands that start a local stack share: a free port, and lines on stderr that say how far it is."""

import socket
import sys
import time

from tetrad.child import ChildState
from tetrad.services.errors import InvalidRequest, Unavailable


class StartProgress:
    """Says on stderr what has been reached, and when, in seconds since the command began."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()

    def say(self, line: str) -> None:
        """Say one line."""
        print(f"[{time.monotonic() - self._started_at:5.1f} s] {line}", file=sys.stderr, flush=True)

    def on_state(self, name: str, state: ChildState, why: str) -> None:
        """Say what a service has reached."""
        if state != "started":
            self.say(f"{name} {state}{f' ({why})' if why else ''}")


def too_slow(timeout_s: float) -> Unavailable:
    """Return the error of a stack that was not ready in time."""
    return Unavailable(
        f"The services were not ready after {timeout_s:g} s; --start-timeout-s gives them longer,"
        " --log-level info shows what they do."
    )


def free_port(host: str, port: int) -> int:
    """Return the port to use, before anything slow begins: the given one if it is free, or any for 0."""
    if not 0 <= port <= 65535:
        raise InvalidRequest(f"--port must be between 0 and 65535, got {port}.", field="port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise Unavailable(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose another with --host or --port."
        ) from error
