"""Retirement: closes HTTP connections without losing a request; the last answer of each carries `Connection: close`.

Once the server retires, every response carries that header. A response that had begun before lacks it, and an idle connection
may have a request on its way: these connections may send one more request, and are closed after a time without one. Knows
uvicorn's connections; knows nothing of requests.
"""

import asyncio

from tetrad.frontend.api.http.server.http1_connection import Http1Connection

# Clients in the middle of a conversation are back sooner; those that are not have noticed a closed connection when they are.
IDLE_S = 5


class Retirement:
    """The connections of one server, and whether they are to end."""

    def __init__(self) -> None:
        self.has_begun = False
        self._connections: set[RetiringConnection] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def begin(self) -> None:
        """Let every connection end with its next answer. Safe to call twice."""
        if not self.has_begun:
            self.has_begun = True
            for connection in self._connections:
                connection.retire()

    async def wait_over(self) -> None:
        """Wait until no connection is open."""
        await self._none_left.wait()

    def enter(self, connection: "RetiringConnection") -> None:
        """Note a new connection."""
        self._connections.add(connection)
        self._none_left.clear()
        if self.has_begun:
            connection.retire()

    def leave(self, connection: "RetiringConnection") -> None:
        """Note the end of a connection."""
        self._connections.discard(connection)
        if not self._connections:
            self._none_left.set()


class RetiringConnection(Http1Connection):
    """A connection that can close after its next response.

    Attributes:
        retirement: of its server; a class attribute of the subclass that the server makes.
    """

    retirement: Retirement

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Note the connection."""
        super().connection_made(transport)
        self.retirement.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note its end."""
        self.retirement.leave(self)
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """Begin to answer a request: the last one, if it is time."""
        super().on_headers_complete()
        if self.retirement.has_begun and self.cycle is not None:
            self.cycle.keep_alive = False

    @property
    def may_keep_alive(self) -> bool:
        """Whether another request may follow on this connection."""
        return super().may_keep_alive and not self.retirement.has_begun

    def retire(self) -> None:
        """Let the next response be the last."""
        self.timeout_keep_alive = IDLE_S
        if not self.is_between_requests:
            if not self.cycle.response_started:
                self.cycle.keep_alive = False
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(IDLE_S, self.timeout_keep_alive_handler)
