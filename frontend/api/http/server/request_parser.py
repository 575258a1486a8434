"""RequestParser: httptools' parser of HTTP/1.1 requests, without its switch to other protocols.

httptools skips the body of a request with `Upgrade:`, and the next packet would be read as a new request. This server speaks no
other protocol, so it ignores the header (RFC 9110 7.8): it parses the head once more without it, and reads the body as usual.
Http1Connection uses it in the place of httptools' own parser. Knows nothing of limits or answers.
"""

from typing import Protocol

import httptools

_TUNNEL = b"CONNECT"
_UPGRADE = b"upgrade"


class RequestEvents(Protocol):
    """Receives what the parser finds; uvicorn's protocol is one. Its attributes are the head as far as it has been parsed."""

    url: bytes
    headers: list[tuple[bytes, bytes]]

    def on_message_begin(self) -> None:
        """A request begins."""

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or, behind the body, a trailer."""

    def on_headers_complete(self) -> None:
        """The head is complete."""

    def on_body(self, body: bytes) -> None:
        """A part of the body."""

    def on_message_complete(self) -> None:
        """The request is complete."""


class RequestParser:
    """Parses the requests of one connection.

    Args:
        events: receives what is found. An exception of its methods ends the parsing.

    Attributes:
        has_unknown_version: whether parsing ended at a version of HTTP that cannot be parsed.
    """

    def __init__(self, events: RequestEvents) -> None:
        self._events = events
        self._ignores_upgrade = False
        self.has_unknown_version = False
        # httptools calls these by name; only the two that depend on an upgrade are this class's own.
        self.on_message_begin = events.on_message_begin
        self.on_url = events.on_url
        self.on_header = events.on_header
        self.on_body = events.on_body
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse bytes; HttpParserError if they are no HTTP, or if `events` raised."""
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
        """Parse no more. Drops httptools' parser, which refers to this object: both would wait for the garbage collector."""
        del self._parser

    def get_method(self) -> bytes:
        """Return the method of the request."""
        return self._parser.get_method()

    def get_http_version(self) -> str:
        """Return the version of the request, as 1.1."""
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        """Return whether the client may send another request on this connection."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """Return False: uvicorn asks whether the connection switches to another protocol."""
        return False

    def on_headers_complete(self) -> None:
        """Pass the end of a head on, unless it will be parsed again."""
        self._ignores_upgrade = self._parser.should_upgrade() and self.get_method() != _TUNNEL
        if not self._ignores_upgrade:
            self._events.on_headers_complete()

    def on_message_complete(self) -> None:
        """Pass the end of a request on, unless it will be parsed again."""
        if not self._ignores_upgrade:
            self._events.on_message_complete()

    def _parse_head_again(self) -> None:
        lines = [b"%b %b HTTP/%b" % (self.get_method(), self._events.url, self.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self._events.headers if header[0] != _UPGRADE]
        self._parser = self._new_parser()
        self._parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Requests that a client sends behind one with `Connection: close` are ignored; they do not cost that one its answer.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser
