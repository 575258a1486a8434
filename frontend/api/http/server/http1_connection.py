"""Http1Connection: corrects uvicorn's HTTP/1.1 connection where it differs from RFC 9110 and RFC 9112.

It ignores upgrades, accepts every form of a target, and sends 100 Continue only to clients that support it. It checks heads by
rules that the parser does not check: an ambiguous one is refused, because a proxy and this server could read it differently
(request smuggling). The base of RetiringConnection, TimedConnection and HttpConnection. Knows no limits and writes no answer.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tetrad.frontend.api.http.server.request_parser import RequestParser

_VERSIONS = ("1.0", "1.1")
# A host and a port in the syntax of RFC 3986; empty if the target has no authority.
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?")
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+")


class WrongHead(Exception):
    """The head of a request is invalid or not supported.

    Attributes:
        status: the status line of the answer, such as b"400 Bad Request".
        text: the reason.
    """

    def __init__(self, status: bytes, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def check_head(method: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check the head of a request.

    Args:
        method: the method in the request line.
        version: the version of HTTP, such as 1.1.
        headers: names, in lower case, and values.

    Raises:
        WrongHead: the head is invalid; the error has the status that RFC 9110 defines.
    """
    if version not in _VERSIONS:
        raise unknown_version(version)
    if method == b"CONNECT":
        raise WrongHead(b"501 Not Implemented", "This server is no proxy: it does not take CONNECT requests.")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and version != "1.0"):
        raise WrongHead(b"400 Bad Request", f"A request must have one Host header, got {len(hosts)}.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise WrongHead(b"400 Bad Request", f"Host must be a host name and a port, got {hosts[0][:80].decode('latin-1')!r}.")
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and version == "1.0":
        raise WrongHead(b"400 Bad Request", "A request of HTTP/1.0 must have no Transfer-Encoding header.")
    if any(coding.lower() != b"chunked" for coding in codings):
        raise WrongHead(b"501 Not Implemented", "Transfer-Encoding must be chunked; this server knows no other.")


def unknown_version(version: str = "") -> WrongHead:
    """Return the error for a version that this server does not support."""
    got = f", got HTTP/{version}" if version else ""
    return WrongHead(b"505 HTTP Version Not Supported", f"This server speaks HTTP/1.1 and HTTP/1.0{got}.")


def with_path(target: bytes) -> bytes:
    """Return a request's target; a URL without a path gets the path /."""
    authority = _ABSOLUTE.match(target)
    if authority is None or target[authority.end() : authority.end() + 1] == b"/":
        return target
    return target[: authority.end()] + b"/" + target[authority.end() :]


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
