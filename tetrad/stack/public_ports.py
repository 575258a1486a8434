"""PublicPorts: the public ports of a served stack, held by the parent process, which outlives every frontend.

HTTP: the socket itself is bound here and inherited: frontends listen on it one after the other or two at a time, and
connections without a frontend wait in its queue instead of being refused. gRPC cannot inherit a socket: the port is reserved,
so that no other program takes it between two frontends, which share it (SO_REUSEPORT).
"""

import socket

from tetrad.services.errors import Unavailable


class PublicPorts:
    """Bound sockets, of which this process accepts nothing.

    Args:
        host: name or address to bind.
        port: of HTTP; 0: any.
        grpc_port: of the public gRPC API; 0: any; None: there is none.

    Attributes:
        port: the one that was bound.
        grpc_port: likewise.

    Raises:
        Unavailable: a port is taken, or the host is no address of this machine.
    """

    def __init__(self, host: str, port: int, grpc_port: int | None) -> None:
        self._http = _bind(host, port)
        self._grpc: socket.socket | None = None
        if grpc_port is not None:
            try:
                self._grpc = _bind(host, grpc_port)
            except Unavailable:
                self._http.close()
                raise
            # Only now: a bind without it proves that the port was free.
            self._grpc.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.port = int(self._http.getsockname()[1])
        self.grpc_port = None if self._grpc is None else int(self._grpc.getsockname()[1])

    @property
    def http_fd(self) -> int:
        """The descriptor for frontends to inherit."""
        return self._http.fileno()

    def close(self) -> None:
        """Let go of the ports; a frontend that lives keeps the one of HTTP open until it ends. Safe to call twice."""
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
        # Connections of a server that has just ended do not keep the port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> Unavailable:
    text = f"Cannot listen on {host}:{port}: {error.strerror or error}. Is another server running there?"
    return Unavailable(text)
