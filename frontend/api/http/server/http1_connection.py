"""Http1Connection: corrects uvicorn's HTTP/1.1 connection where it differs from RFC 9110 and RFC 9112.

It ignores upgrades, checks heads, accepts every form of a target, and sends 100 Continue only to clients that support it. The
base of RetiringConnection, TimedConnection and HttpConnection. Knows no limits and writes no answer.
"""

import asyncio
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tetrad.frontend.api.http.server.request_head import check_head, with_path
from tetrad.frontend.api.http.server.request_parser import RequestParser


class Http1Connection(HttpToolsProtocol):
    """One connection."""

    parser: RequestParser  # type: ignore[assignment] # replaces httptools' parser

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = RequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection and close its parser."""
        parser = self.parser
        super().connection_lost(exc)  # uvicorn drops its reference
        parser.close()

    def on_headers_complete(self) -> None:
        """Start to answer a request; WrongHead if its head is invalid."""
        version = self.parser.get_http_version()
        check_head(self.parser.get_method(), version, self.headers)
        self.url = with_path(self.url)
        if version == "1.0":
            self.expect_100_continue = False  # RFC 9110 10.1.1
        super().on_headers_complete()
        if self.expect_100_continue:
            # A client that is answered before it sends the body need not send it: its next bytes may not be a body.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Process a part of a body."""
        if self.expect_100_continue:
            self.expect_100_continue = False
            self.cycle.keep_alive = self.may_keep_alive
        super().on_body(body)

    @property
    def may_keep_alive(self) -> bool:
        """Whether the connection accepts another request."""
        return self.parser.should_keep_alive()

    @property
    def is_between_requests(self) -> bool:
        """Whether the last request, if any, has been answered completely."""
        cycle = cast(RequestResponseCycle | None, self.cycle)  # uvicorn declares it without its initial None
        return cycle is None or cycle.response_complete
