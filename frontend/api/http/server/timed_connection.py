"""TimedConnection: a connection with time limits for the client to send the head, to send the body, and to read the answer.

The base of HttpConnection. Invariant: if the client does nothing, a timer of this file, uvicorn's keep-alive timer or the end
of the answer in progress ends the connection. Of sizes it knows only the smallest part of a body that counts as progress.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

from tetrad.frontend.api.http.server.retirement import RetiringConnection
from tetrad.frontend.config import FrontendSettings
from tetrad.services.log import get_logger
from tetrad.services.timers.running_time import RunningTimer

log = get_logger()

# Minimum number of bytes of a body in each body_timeout_s: 2 kB per second is slow, less is an attack.
_LEAST_BODY_BYTES = 64 << 10
# Seconds between the timeout of an idle connection and its closing.
_LAST_READ_S = 0.05


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one connection; see FrontendSettings for each.

    Attributes:
        max_connections: the setting, reduced to what the limit of open files allows.
    """

    max_connections: int
    max_header_bytes: int
    max_body_bytes: int
    header_timeout_s: float
    body_timeout_s: float
    slow_client_timeout_s: float

    @classmethod
    def of(cls, settings: FrontendSettings, *, max_connections: int) -> "ConnectionLimits":
        """Return the limits of the settings, with at most `max_connections` connections."""
        return cls(
            max_connections=min(settings.max_connections, max_connections),
            max_header_bytes=settings.max_header_bytes,
            max_body_bytes=settings.max_body_bytes,
            header_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            slow_client_timeout_s=settings.slow_client_timeout_s,
        )


class TimedConnection(RetiringConnection):
    """One connection with time limits.

    Attributes:
        limits: the limits; a class attribute of the subclass that the server makes.
    """

    limits: ConnectionLimits
    in_head = False
    in_body = False
    num_body_bytes = 0
    _phase: Literal["head", "body", ""] = ""
    _phase_timer: RunningTimer | None = None
    _num_bytes_before = 0
    _stall_timer: RunningTimer | None = None
    _num_unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Start to wait for a head."""
        super().connection_made(transport)
        self.follow_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        for timer in (self._phase_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and start the timer of the next part of the request."""
        super().data_received(data)
        self.follow_phase()

    def on_message_begin(self) -> None:
        """Record the start of a head."""
        self.in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Record the start of the body."""
        super().on_headers_complete()
        self.in_head, self.in_body, self.num_body_bytes = False, True, 0

    def on_body(self, body: bytes) -> None:
        """Count the bytes of the body."""
        self.num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of the request."""
        self.in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """If the connection ends with this response, start the timer for the client to read the rest."""
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch_reading()

    def pause_writing(self) -> None:
        """Start the timer for the client to read."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Stop the timer: the client has read."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, after reading the bytes that have arrived: this process may have been suspended."""
        self.timeout_keep_alive_task = self.loop.call_later(_LAST_READ_S, self._end_idle)

    def _end_idle(self) -> None:
        """Close the connection; abort it if the client has not read the last answer, because closing would wait for that."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def on_late(self, what: Literal["head", "body"]) -> None:
        """Answer a client that exceeded the time limit for a part of its request."""
        raise NotImplementedError

    def follow_phase(self) -> None:
        """Start the timer of the part that the client must send now, if the part has changed."""
        if self.transport.is_closing():
            return
        phase: Literal["head", "body", ""] = "body" if self.in_body else "head" if self.in_head else ""
        if not phase and self.is_between_requests and self.timeout_keep_alive_task is None:
            # No bytes yet, or only line breaks, which do not start a request.
            phase = "head"
        if phase == self._phase:
            return
        self._phase = phase
        if self._phase_timer is not None:
            self._phase_timer.cancel()
        self._start_phase_timer()

    def _start_phase_timer(self) -> None:
        self._num_bytes_before = self.num_body_bytes
        self._phase_timer = None
        if self._phase:
            seconds = self.limits.header_timeout_s if self._phase == "head" else self.limits.body_timeout_s
            self._phase_timer = RunningTimer(seconds, self._on_phase_over)

    def _on_phase_over(self) -> None:
        gets_on = self._phase == "body" and self.num_body_bytes - self._num_bytes_before >= _LEAST_BODY_BYTES
        # While the server does not read, the client's time limit does not apply.
        if gets_on or self.flow.read_paused:
            self._start_phase_timer()
        elif self._phase and not self.transport.is_closing():
            log.info("http.late_client", part=self._phase)
            self.on_late(self._phase)

    def _watch_reading(self) -> None:
        self._num_unsent = self.transport.get_write_buffer_size()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._stall_timer = RunningTimer(self.limits.slow_client_timeout_s, self._on_unread)

    def _on_unread(self) -> None:
        if 0 < self.transport.get_write_buffer_size() < self._num_unsent:
            self._watch_reading()
        elif self.transport.get_write_buffer_size():
            log.info("http.slow_client_dropped", num_unsent_bytes=self._num_unsent)
            self.transport.abort()
