"""RequestParser: parses HTTP/1.1 requests with httptools, without its switch to other protocols.

httptools skips the body of a request with `Upgrade:`, and the next packet would be read as a new request. This server supports
no other protocol, so it ignores the header (RFC 9110 7.8): it parses the head again without it, and reads the body as usual.
Http1Connection uses it instead of httptools' parser. Knows nothing of limits or answers.
"""

from typing import Protocol

import httptools

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
