"""HttpConnection: uvicorn's HTTP/1.1 protocol with bounds on what one client may take, and JSON for what is no HTTP at all.

Counts connections, heads, headers, framing, requests in a row and bytes that nobody wants. Time is TimedConnection's business,
and bodies that somebody wants are the routes'.
"""

import asyncio
from typing import Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tetrad.frontend.http.errors import protocol_error_body
from tetrad.frontend.http.retirement import Retirement
from tetrad.frontend.http.timed_connection import ConnectionLimits, TimedConnection
from tetrad.services.errors import InvalidRequest, TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()

_HEAD = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
_MAX_HEADERS = 256
# Requests that wait on one connection for the answer to another.
_MAX_PIPELINED = 16
# A body in chunks of one byte is six times as long on the wire; only comments in the framing make it longer than this.
_MAX_FRAMING = 16


class _Refused(Exception):
    """Ends the parser's work: it answers an error of its callback with send_400_response."""


def connection_type(its_limits: ConnectionLimits, its_retirement: Retirement) -> type[HttpToolsProtocol]:
    """Return the protocol class of one server: uvicorn makes the instances.

    Args:
        its_limits: what each may take.
        its_retirement: of the server whose connections these are.
    """

    class ServersConnection(HttpConnection):
        """A connection of this server."""

        limits = its_limits
        retirement = its_retirement

    return ServersConnection


class HttpConnection(TimedConnection):
    """One connection. The parser itself would collect headers, trailers and requests without end."""

    _num_head_bytes = 0
    _num_wire_bytes = 0
    _num_unwanted_bytes = 0
    _too_long = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Take a connection, or tell it that there are too many."""
        super().connection_made(transport)
        most = self.limits.max_connections
        if len(self.connections) > most:
            log.warning("http.too_many_connections", max_connections=most)
            self._answer(b"503 Service Unavailable", Unavailable(f"This server has {most} connections, the most it takes."))

    def data_received(self, data: bytes) -> None:
        """Take bytes; what is not over after too many of them is refused."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.limits.max_header_bytes:
                self._refuse_head(f"longer than the {self.limits.max_header_bytes} bytes")
                self.send_400_response("")
        elif self.in_body:
            self._num_wire_bytes += len(data)
            if self._num_wire_bytes > _MAX_FRAMING * self.num_body_bytes + self.limits.max_header_bytes + len(data):
                self.send_400_response("The body's chunks are mostly framing.")

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._num_head_bytes = self._num_wire_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Behind the body there may be more of them, which nobody reads."""
        if not self.in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer the request, if its head is short enough."""
        most = self.limits.max_header_bytes
        if len(self.headers) > _MAX_HEADERS:
            self._refuse_head(f"more than the {_MAX_HEADERS} headers")
            raise _Refused
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > most:
            self._refuse_head(f"longer than the {most} bytes")
            raise _Refused
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _Refused
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body. What comes behind its answer is read so that the client gets to see it, within limits."""
        super().on_body(body)
        if self.cycle.response_complete:
            self._num_unwanted_bytes += len(body)
            if self._num_unwanted_bytes > 2 * self.limits.max_body_bytes:
                self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, in the form of every other error."""
        status, text = b"400 Bad Request", msg or "Invalid HTTP request received."
        if self._too_long:
            status = b"431 Request Header Fields Too Large"
            text = f"The request line and headers are {self._too_long} that are taken."
        self._answer(status, InvalidRequest(text))

    def on_late(self, what: Literal["head", "body"]) -> None:
        """Answer a client that is late; one that sent nothing, or has its answer, is owed none."""
        if not self.in_head and (what == "head" or self.cycle.response_complete):
            self.transport.close()
            return
        seconds = self.limits.header_timeout_s if what == "head" else self.limits.body_timeout_s
        text = f"The request's {what} did not arrive in time: within {seconds:g} s it was not complete"
        text += "." if what == "head" else " and less than 64 KiB came."
        self._answer(b"408 Request Timeout", InvalidRequest(text))

    def _refuse_head(self, what: str) -> None:
        self._too_long = what

    def _answer(self, status: bytes, error: TetradError) -> None:
        """Answer in place of the application, and end the connection."""
        if self.is_answering:
            # In the middle of another answer it would be read as a part of that.
            self.transport.abort()
            return
        body = protocol_error_body(error)
        self.transport.write(_HEAD % (status, len(body), body))
        self.transport.close()
