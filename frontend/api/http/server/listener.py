"""The listener: binds the HTTP server's socket, and sets the options that its connections inherit. Knows nothing of HTTP."""

import contextlib
import socket

from tetrad.services.errors import Unavailable

# Maximum number of unread bytes that the kernel buffers for a client. Beyond this the frontend buffers bytes, and beyond its
# buffer the outputs of a request are merged until the client reads again.
_MAX_UNSENT_BYTES = 128 << 10
# A lost peer is detected after about a minute, also on an idle connection.
_PROBE_AFTER_S, _PROBE_EVERY_S, _NUM_PROBES = 30, 10, 3
_MOST_MS = 2**31 - 1
"""The largest time in milliseconds that a socket option takes: 24 days."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; Unavailable if the address is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, UnicodeError) as error:  # UnicodeError: no name in DNS can be so long
        bound.close()
        text = f"Cannot listen on {host}:{port}: {getattr(error, 'strerror', error)}. Is another server running there?"
        raise Unavailable(text) from error
    return bound


def tune(listener: socket.socket, slow_client_timeout_s: float) -> None:
    """Send answers without delay, limit the kernel's buffers for slow clients, and enable the detection of lost ones.

    The address can be bound again as soon as the socket is closed.

    Args:
        listener: the listening socket; its connections inherit the options.
        slow_client_timeout_s: maximum seconds without an acknowledgement of sent data.
    """
    if listener.family == socket.AF_UNIX:
        return
    # An inherited socket lacks it; closed connections would then block the port for the next server.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # uvloop sets this for every connection; asyncio only if the listener names its protocol, and answers wait 40 ms without it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_NOTSENT_LOWAT", _MAX_UNSENT_BYTES),
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _NUM_PROBES),
        ("TCP_USER_TIMEOUT", int(min(slow_client_timeout_s * 1000, _MOST_MS))),
    ):
        # Some versions of Python and some kernels lack some of the options.
        with contextlib.suppress(AttributeError, OSError):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
