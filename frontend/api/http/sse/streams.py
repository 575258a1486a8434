"""Streams: sends server-sent events at a low cost per chunk, and cancels the work when its client disconnects.

A disconnect cancels the work of streamed and of whole answers; the work's clean-up then aborts the request. A slow reader
delays only its own stream: the request's collector merges the unread outputs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tetrad.frontend.api.http.schemas.errors import error_body
from tetrad.frontend.api.http.schemas.objects import event
from tetrad.services.errors import InternalError, TetradError
from tetrad.services.log import get_logger
from tetrad.services.timers.idle_timer import IdleTimer

log = get_logger()

Result = TypeVar("Result")


@dataclass(frozen=True)
class StreamForm:
    """The events of an API's streams besides their content.

    Attributes:
        closing: the last bytes, for APIs with an end mark.
        keep_alive: an event without content, for proxies that close silent connections.
        failure: returns the event of an error that occurs after the status was sent.
        media_type: media type of the response.
    """

    closing: bytes = b"data: [DONE]\n\n"
    keep_alive: bytes = b": keep-alive\n\n"
    failure: Callable[[TetradError], bytes] = lambda error: event(error_body(error))
    media_type: str = "text/event-stream"


OPENAI = StreamForm()


async def until_disconnected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Return the result of `work`; cancel it and raise ClientDisconnect if the client disconnects first.

    Args:
        receive: `receive` of a request whose body has been read.
        work: the work, which runs in the caller's task.
    """
    async with _WhileConnected(receive):
        return await work


class _WhileConnected:
    """Cancels its body when the client disconnects, and then raises ClientDisconnect; similar to asyncio.timeout.

    The body stays in the caller's task: a separate task costs several iterations of the event loop, a few milliseconds if many
    requests run.

    Args:
        receive: of a request whose body has been read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._has_left = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._num_cancels = task, task.cancelling()
        self._listener = asyncio.create_task(_disconnected(self._receive))
        self._listener.add_done_callback(self._on_disconnect)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._listener.remove_done_callback(self._on_disconnect)
        self._listener.cancel()
        if self._has_left and self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise ClientDisconnect from error

    def _on_disconnect(self, _: "asyncio.Task[None]") -> None:
        self._has_left = True
        self._task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events. It starts with the first event: an error before it has its own HTTP status.

    If the first event takes longer than proxies wait, the status is sent before it; later errors are then events.

    Args:
        pieces: the events; a TetradError becomes an error event. The iterator is always closed.
        form: the API's form of streams.
        keep_alive_s: seconds without an event after which a keep-alive event is sent.
        at_once: start the response before the first event.
    """

    def __init__(self, pieces: AsyncIterator[bytes], *, form: StreamForm, keep_alive_s: float, at_once: bool = False) -> None:
        self.status_code = 200
        self.media_type = form.media_type
        self.background = None
        self.body = b""
        self._pieces = pieces
        self._form = form
        self._keep_alive_s = keep_alive_s
        self._at_once = at_once
        self._has_begun = False
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # The length is unknown.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the response; raises errors that occur before its start."""
        try:
            await until_disconnected(receive, self._send(send))
        except ClientDisconnect:
            if not self._has_begun:
                raise
            log.info("http.client_left")
        finally:
            # Also if the client disconnected before anything was sent.
            await _close(self._pieces)

    async def _send(self, send: Send) -> None:
        keep_alive = _KeepAlive(lambda: self._put(send, self._form.keep_alive), self._keep_alive_s)
        try:
            if self._at_once:
                await self._put(send, b"")
            try:
                if (first := await anext(self._pieces, None)) is not None:
                    keep_alive.timer.note()
                    await self._put(send, first)
                    # A resumed task passes through the awaits of all middleware; a separate task for the pieces avoids this.
                    await asyncio.create_task(self._send_rest(send, keep_alive.timer))
            except Exception as error:
                if not self._has_begun:
                    raise
                # The status has been sent: the error can only be an event.
                await self._put(send, self._form.failure(_as_tetrad_error(error)))
            await keep_alive.stop()
            await self._put(send, self._form.closing, more_body=False)
        finally:
            await keep_alive.stop()

    async def _send_rest(self, send: Send, timer: IdleTimer) -> None:
        async for piece in self._pieces:
            timer.note()
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _put(self, send: Send, piece: bytes, *, more_body: bool = True) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": piece, "more_body": more_body})


def _as_tetrad_error(error: Exception) -> TetradError:
    if isinstance(error, TetradError):
        return error
    log.error("http.stream_failed", exc_info=error)
    return InternalError("The stream failed; the server's log has the details.")


class _KeepAlive:
    """Writes an event whenever a stream has been silent for some time, unless the last one is not written yet.

    Args:
        write: writes a whole keep-alive event, so that it does not mix with other events.
        interval_s: maximum silence in seconds.
    """

    def __init__(self, write: Callable[[], Coroutine[Any, Any, None]], interval_s: float) -> None:
        self._write = write
        self._task: asyncio.Task[None] | None = None
        self.timer = IdleTimer(interval_s, self._start_write)

    def _start_write(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write())

    async def stop(self) -> None:
        """Stop sending. Further calls do nothing."""
        self.timer.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def stream_response(request: Request, pieces: AsyncIterator[bytes], form: StreamForm = OPENAI) -> EventStream:
    """Return the streamed response of `pieces`."""
    return EventStream(pieces, form=form, keep_alive_s=request.app.state.settings.sse_keep_alive_s)


async def _close(pieces: AsyncIterator[bytes]) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()
