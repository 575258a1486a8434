"""Retirement: closes HTTP connections without losing a request; the last answer of each has `Connection: close`.

When the server retires, every response has that header. A response that had started before lacks it, and an idle connection may
have a request in transit: these connections may send one more request, and are closed after a time without one. Knows uvicorn's
connections; knows nothing of requests.
"""

import asyncio

from tetrad.frontend.api.http.server.http1_connection import Http1Connection

# Seconds. Active clients send their next request earlier; others notice the closed connection before their next request.
IDLE_S = 5


class Retirement:
    """The open connections of one server, and whether it retires."""

    def __init__(self) -> None:
        self.has_begun = False
        self._connections: set[RetiringConnection] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def begin(self) -> None:
        """Close every connection with its next answer. Further calls do nothing."""
        if not self.has_begun:
            self.has_begun = True
            for connection in self._connections:
                connection.retire()

    async def wait_over(self) -> None:
        """Wait until no connection is open."""
        await self._none_left.wait()

    def enter(self, connection: "RetiringConnection") -> None:
        """Add a new connection."""
        self._connections.add(connection)
        self._none_left.clear()
        if self.has_begun:
            connection.retire()

    def leave(self, connection: "RetiringConnection") -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)
        if not self._connections:
            self._none_left.set()


class RetiringConnection(Http1Connection):
    """A connection that can close after its next response.

    Attributes:
        retirement: the retirement of its server; a class attribute of the subclass that the server makes.
    """

    retirement: Retirement

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Register the connection."""
        super().connection_made(transport)
        self.retirement.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self.retirement.leave(self)
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """Start to answer a request; it is the last one if the server retires."""
        super().on_headers_complete()
        if self.retirement.has_begun and self.cycle is not None:
            self.cycle.keep_alive = False

    @property
    def may_keep_alive(self) -> bool:
        """Whether the connection accepts another request."""
        return super().may_keep_alive and not self.retirement.has_begun

    def retire(self) -> None:
        """Close the connection after its next response."""
        self.timeout_keep_alive = IDLE_S
        if not self.is_between_requests:
            if not self.cycle.response_started:
                self.cycle.keep_alive = False
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(IDLE_S, self.timeout_keep_alive_handler)
