"""PublicPorts: the public ports of a served stack, held by the parent process, which outlives every frontend.

HTTP: the socket itself is bound here and inherited: frontends listen on it one after the other or two at a time, and
connections wait in its queue while there is no frontend, instead of being refused. gRPC cannot inherit a socket: the port is
reserved, so that no other program takes it between two frontends, which share it (SO_REUSEPORT).
"""

import socket
from pathlib import Path

from tetrad.services.errors import Unavailable
from tetrad.services.unix_listener import UnixListener


class PublicPorts:
    """The bound sockets; this process itself accepts no connections.

    Args:
        host: the name or address to bind.
        port: the port of HTTP; 0: any free port.
        grpc_port: the port of the public gRPC API; 0: any free port; None: no gRPC API.
        uds: path of a Unix socket for HTTP in place of host and port; None: no such socket.

    Attributes:
        port: the HTTP port that was bound; with `uds` the given one.
        grpc_port: the gRPC port that was bound; None: no gRPC API.

    Raises:
        Unavailable: a port or the path is in use, or the host is not an address of this machine.
    """

    def __init__(self, host: str, port: int, grpc_port: int | None, *, uds: Path | None = None) -> None:
        self._unix = None if uds is None else UnixListener(uds)
        self._http = _bind(host, port) if self._unix is None else self._unix.socket
        self._grpc: socket.socket | None = None
        if grpc_port is not None:
            try:
                self._grpc = _bind(host, grpc_port)
            except Unavailable:
                self.close()
                raise
            # Set only after the bind: a bind without it proves that the port was free.
            self._grpc.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.port = port if uds is not None else int(self._http.getsockname()[1])
        self.grpc_port = None if self._grpc is None else int(self._grpc.getsockname()[1])

    @property
    def http_fd(self) -> int:
        """The file descriptor that frontends inherit."""
        return self._http.fileno()

    def close(self) -> None:
        """Close the ports; a running frontend keeps the HTTP port open until it ends. Safe to call twice."""
        if self._unix is not None:
            self._unix.close()
        self._http.close()
        if self._grpc is not None:
            self._grpc.close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    bound = socket.socket(family, kind, protocol)
    try:
        try:
            # Without SO_REUSEADDR: with it, two servers that start at the same time both get the port, until one listens.
            bound.bind(address)
        except OSError:
            # With it, the connections of a server that has just ended do not block the port.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> Unavailable:
    text = f"Cannot listen on {host}:{port}: {error.strerror or error}. Is another server running there?"
    return Unavailable(text)
