"""Lingering: ends refused connections in a way that lets their clients read the answer.

The kernel resets a connection that is closed while bytes of the client are unread, and the client then often loses the answer.
So the server closes its own direction only, and the connection reads and drops what still arrives for a short time. One object
per server, on its event loop.
"""

import asyncio

_LINGER_S = 1.0
"""Seconds for the client to read the answer and to close the connection."""
_MOST = 64
"""Number of connections that linger at a time; those beyond are closed at once."""


class Lingering:
    """The lingering connections of one server."""

    def __init__(self) -> None:
        self._timers: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def begin(self, transport: asyncio.Transport) -> None:
        """End a connection whose last answer has been written; its bytes must be read until it is lost."""
        if len(self._timers) >= _MOST or transport.is_closing():
            transport.close()
            return
        if transport.can_write_eof():  # not over TLS, where the client knows the end of the answer by its length
            transport.write_eof()
        transport.resume_reading()
        self._timers[transport] = asyncio.get_running_loop().call_later(_LINGER_S, _close, transport)

    def end(self, transport: asyncio.Transport) -> None:
        """Forget a connection that is lost."""
        timer = self._timers.pop(transport, None)
        if timer is not None:
            timer.cancel()


def _close(transport: asyncio.Transport) -> None:
    """Close a connection; abort it if its client has not read the answer, because closing would wait for that."""
    if transport.get_write_buffer_size():
        transport.abort()
    else:
        transport.close()
