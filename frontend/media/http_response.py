"""HTTP response: reads one answer of a web server, with limits on its size. Knows no addresses and no rules."""

import asyncio
from dataclasses import dataclass, field

import httptools

_PIECE_BYTES = 1 << 16
_MAX_HEADER_BYTES = 1 << 16
_SMALLEST_FINAL_STATUS = 200


class BadResponse(Exception):
    """The server's answer cannot be used; the text gives the reason."""


@dataclass(slots=True)
class HttpResponse:
    """An answer: its status, its headers with lower-case names, and its body.

    The methods that begin with `on_` are called by the parser.
    """

    max_bytes: int
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    has_headers: bool = False
    is_complete: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_body(self, data: bytes) -> None:
        """Append to the body."""
        self.body += data
        if len(self.body) > self.max_bytes:
            raise BadResponse(f"it has more than {self.max_bytes} bytes, the limit (max_media_bytes)")


async def read_response(reader: asyncio.StreamReader, max_bytes: int) -> HttpResponse:
    """Return the answer that a connection brings; its body is read only for status 200.

    Raises:
        BadResponse: the answer is no HTTP, too large, compressed, or cut off.
    """
    response = HttpResponse(max_bytes)
    parser = _Parser(response)
    num_header_bytes = 0
    while not response.is_complete:
        piece = await reader.read(_PIECE_BYTES)
        if not piece:
            _check_end(response)
            break
        num_body_bytes = len(response.body)
        parser.feed(piece)
        if len(response.body) == num_body_bytes:  # headers, also those that follow a body in chunks
            num_header_bytes += len(piece)
            if num_header_bytes > _MAX_HEADER_BYTES + _PIECE_BYTES:
                raise BadResponse(f"its headers have more than {_MAX_HEADER_BYTES} bytes")
        if response.has_headers:
            if response.status != _SMALLEST_FINAL_STATUS:
                break
            _check_headers(response)
    return response


class _Parser:
    """Feeds the parser of httptools; answers before the final one (status 1xx) are dropped."""

    def __init__(self, response: HttpResponse) -> None:
        self._response = response
        # The parser looks for these when it is made.
        self.on_header, self.on_body = response.on_header, response.on_body
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, BadResponse):
                raise error.__context__ from None
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BadResponse(f"it is no HTTP ({type(error).__name__})") from None

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()
        self._response.has_headers = self._response.status >= _SMALLEST_FINAL_STATUS
        if not self._response.has_headers:
            self._response.headers.clear()

    def on_message_complete(self) -> None:
        self._response.is_complete = self._response.has_headers


def _check_headers(response: HttpResponse) -> None:
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise BadResponse(f"it is encoded as {encoding[:32]!r} although this was not accepted")
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) > response.max_bytes:
        raise BadResponse(f"it has {length[:20]} bytes; the limit is {response.max_bytes} (max_media_bytes)")


def _check_end(response: HttpResponse) -> None:
    """Raise BadResponse if the connection's end is not the end of the body."""
    has_length = "content-length" in response.headers or "chunked" in response.headers.get("transfer-encoding", "").lower()
    if not response.has_headers or has_length:
        raise BadResponse("the connection was closed before its end")
