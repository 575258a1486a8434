"""HttpConnection: an HTTP/1.1 connection that enforces limits of sizes and answers malformed requests with JSON errors.

It limits connections, heads, headers, framing, pipelined requests and unread bytes. TimedConnection limits times, and routes
limit bodies. A request that is refused here ends the connection, after the answers to the earlier requests.
"""

import asyncio
from typing import Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tetrad.frontend.api.http.schemas.errors import protocol_error_body
from tetrad.frontend.api.http.server.http1_connection import WrongHead, unknown_version
from tetrad.frontend.api.http.server.lingering import Lingering
from tetrad.frontend.api.http.server.retirement import Retirement
from tetrad.frontend.api.http.server.timed_connection import ConnectionLimits, TimedConnection
from tetrad.services.errors import InvalidRequest, TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()

_HEAD = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
_MAX_HEADERS = 256
# Maximum number of requests that wait on one connection for the answer to an earlier one.
_MAX_PIPELINED = 16
# Maximum ratio of received bytes to body bytes. Chunks of one byte need six; only comments in the framing need more than this.
_MAX_FRAMING = 16


def connection_type(its_limits: ConnectionLimits, its_retirement: Retirement) -> type[HttpToolsProtocol]:
    """Return the protocol class of one server; uvicorn makes the instances.

    Args:
        its_limits: the limits of each connection.
        its_retirement: the retirement of the server.
    """

    class ServersConnection(HttpConnection):
        """A connection of this server."""

        limits = its_limits
        retirement = its_retirement
        lingering = Lingering()

    return ServersConnection


class HttpConnection(TimedConnection):
    """One connection. The parser itself does not limit headers, trailers and requests.

    Attributes:
        lingering: the refused connections of its server; a class attribute of the subclass that the server makes.
    """

    lingering: Lingering
    _num_head_bytes = 0
    _num_wire_bytes = 0
    _num_unwanted_bytes = 0
    _wrong_head: WrongHead | None = None
    _is_refused = False
    _last_answer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Accept a connection, or answer that there are too many connections."""
        super().connection_made(transport)
        most = self.limits.max_connections
        if len(self.connections) > most:
            log.warning("http.too_many_connections", max_connections=most)
            self.connections.discard(self)  # while it ends, it takes no other's place
            self._answer(b"503 Service Unavailable", Unavailable(f"This server has {most} connections, the most it takes."))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self.lingering.end(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes; refuse a head that exceeds its limit. Bytes of a refused client are dropped."""
        if self._is_refused:
            self._count_unwanted(data)
        if self.transport.is_closing() or self._is_refused:
            return
        super().data_received(data)
        if self.transport.is_closing() or self._is_refused:
            return
        if self.in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.limits.max_header_bytes:
                self._wrong_head = _too_long(f"longer than the {self.limits.max_header_bytes} bytes")
                self.send_400_response("")
        elif self.in_body:
            self._num_wire_bytes += len(data)
            if self._num_wire_bytes > _MAX_FRAMING * self.num_body_bytes + self.limits.max_header_bytes + len(data):
                self.send_400_response("The body's chunks are mostly framing.")

    def on_message_begin(self) -> None:
        """Reset the counts for a new request."""
        self._num_head_bytes = self._num_wire_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers, after the body, are ignored."""
        if not self.in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to answer the request if its head is valid."""
        try:
            self._check_size_of_head()
            super().on_headers_complete()
        except WrongHead as error:
            self._wrong_head = error
            raise  # this ends the parsing, and uvicorn calls send_400_response

    def on_body(self, body: bytes) -> None:
        """Process a part of a body. The rest of an answered request is read up to a limit, so that the client can finish."""
        super().on_body(body)
        if self.cycle.response_complete:
            self._count_unwanted(body)

    def on_response_complete(self) -> None:
        """Continue with the next request, or end the connection if that was refused."""
        is_last = not self.pipeline
        super().on_response_complete()
        if self._is_refused and is_last and not self.transport.is_closing():
            self._end()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed, in the form of all other errors."""
        wrong = self._wrong_head or (unknown_version() if self.parser.has_unknown_version else None)
        if wrong is None:
            self._answer(b"400 Bad Request", InvalidRequest(msg or "Invalid HTTP request received."))
        else:
            self._answer(wrong.status, InvalidRequest(wrong.text))

    def on_late(self, what: Literal["head", "body"]) -> None:
        """Answer a client that exceeded a time limit; close the connection if it sent nothing or has its answer already."""
        if self._is_refused:
            return
        if not self.in_head and (what == "head" or self.cycle.response_complete):
            self.transport.close()
            return
        seconds = self.limits.header_timeout_s if what == "head" else self.limits.body_timeout_s
        text = f"The request's {what} did not arrive in time: within {seconds:g} s it was not complete"
        text += "." if what == "head" else " and less than 64 KiB came."
        self._answer(b"408 Request Timeout", InvalidRequest(text))

    def _check_size_of_head(self) -> None:
        most = self.limits.max_header_bytes
        if len(self.headers) > _MAX_HEADERS:
            raise _too_long(f"more than the {_MAX_HEADERS} headers")
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > most:
            raise _too_long(f"longer than the {most} bytes")
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise WrongHead(b"400 Bad Request", f"On one connection at most {_MAX_PIPELINED} requests may wait.")

    def _answer(self, status: bytes, error: TetradError) -> None:
        """Answer the request that is being received instead of the application, and end the connection.

        Answers to earlier requests are sent first. No further bytes are parsed.
        """
        body = protocol_error_body(error)
        self._last_answer = _HEAD % (status, len(body), body)
        self._is_refused = True
        is_due_later = self._is_answering_another
        if self.in_body and self.pipeline:
            self.pipeline.popleft()  # the request itself, which waits in the pipeline
        elif self.in_body and self.cycle.response_started:
            # The request has an answer already: a second one would be read as a part of it.
            self._last_answer = b""
            if not self.cycle.response_complete:
                self.transport.abort()
                return
        self.in_head = self.in_body = False
        if is_due_later:
            self.follow_phase()
        else:
            self._end()

    @property
    def _is_answering_another(self) -> bool:
        """Whether the application has not finished the answer to an earlier request."""
        if self.pipeline:
            return True
        return not self.in_body and not self.is_between_requests

    def _count_unwanted(self, data: bytes) -> None:
        self._num_unwanted_bytes += len(data)
        if self._num_unwanted_bytes > 2 * self.limits.max_body_bytes:
            self.transport.abort()

    def _end(self) -> None:
        self.transport.write(self._last_answer)
        self.lingering.begin(self.transport)


def _too_long(what: str) -> WrongHead:
    return WrongHead(b"431 Request Header Fields Too Large", f"The request line and headers are {what} that are taken.")
