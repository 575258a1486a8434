"""Http1Connection: corrects uvicorn's HTTP/1.1 connection where it differs from RFC 9110 and RFC 9112.

It accepts every form of a target, and sends 100 Continue only to clients that support it. It checks heads by rules that the
parser does not check: an ambiguous one is refused, because a proxy and this server could read it differently (request
smuggling). The base of RetiringConnection, TimedConnection and HttpConnection. Knows no limits and writes no answer.

It parses requests with httptools, without its switch to other protocols. httptools skips the body of a request with
`Upgrade:`, and the next packet would be read as a new request. This server supports no other protocol, so it ignores the
header (RFC 9110 7.8): it parses the head again without it, and reads the body as usual.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

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


_TUNNEL = b"CONNECT"
_UPGRADE = b"upgrade"


class RequestEvents(Protocol):
    """The receiver of the parser's events, such as uvicorn's protocol. Its attributes are the parsed part of the head."""

    url: bytes
    headers: list[tuple[bytes, bytes]]

    def on_message_begin(self) -> None:
        """Handle the start of a request."""

    def on_url(self, url: bytes) -> None:
        """Handle a part of the request's target."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header or, after the body, a trailer."""

    def on_headers_complete(self) -> None:
        """Handle the end of the head."""

    def on_body(self, body: bytes) -> None:
        """Handle a part of the body."""

    def on_message_complete(self) -> None:
        """Handle the end of the request."""


class RequestParser:
    """Parses the requests of one connection.

    Args:
        events: receives the events. An exception in its methods ends the parsing.

    Attributes:
        has_unknown_version: whether parsing ended at a version of HTTP that cannot be parsed.
    """

    def __init__(self, events: RequestEvents) -> None:
        self._events = events
        self._ignores_upgrade = False
        self.has_unknown_version = False
        # httptools calls these by name; this class implements only the two that depend on an upgrade.
        self.on_message_begin = events.on_message_begin
        self.on_url = events.on_url
        self.on_header = events.on_header
        self.on_body = events.on_body
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse bytes; HttpParserError if they are not valid HTTP, or if `events` raised."""
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._parse_head_again()
            except httptools.HttpParserError as error:
                self.has_unknown_version = str(error) == "Invalid HTTP version"
                raise

    def close(self) -> None:
        """Drop httptools' parser, which refers to this object: otherwise both would wait for the garbage collector."""
        del self._parser

    def get_method(self) -> bytes:
        """Return the method of the request."""
        return self._parser.get_method()

    def get_http_version(self) -> str:
        """Return the version of the request, such as 1.1."""
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        """Return whether the client may send another request on this connection."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """Return False: the connection never switches to another protocol. uvicorn calls this."""
        return False

    def on_headers_complete(self) -> None:
        """Pass on the end of a head, unless the head will be parsed again."""
        self._ignores_upgrade = self._parser.should_upgrade() and self.get_method() != _TUNNEL
        if not self._ignores_upgrade:
            self._events.on_headers_complete()

    def on_message_complete(self) -> None:
        """Pass on the end of a request, unless its head will be parsed again."""
        if not self._ignores_upgrade:
            self._events.on_message_complete()

    def _parse_head_again(self) -> None:
        lines = [b"%b %b HTTP/%b" % (self.get_method(), self._events.url, self.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self._events.headers if header[0] != _UPGRADE]
        self._parser = self._new_parser()
        self._parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Requests after one with `Connection: close` are ignored, and do not prevent its answer.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser


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
