"""Streams: server-sent events at a low cost per chunk, and cancellation of the work when its client disconnects.

A disconnect cancels the work, streaming or not; the work's clean-up then aborts the request. A slow reader delays its own
stream only: the request's collector merges the unread outputs.
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
    """The events of an API's stream besides its content.

    Attributes:
        closing: the last bytes, for APIs that mark the end.
        keep_alive: says nothing, for proxies that end connections on which nothing is said.
        failure: an error that comes when the status is gone -> an event.
        media_type: of the response.
    """

    closing: bytes = b"data: [DONE]\n\n"
    keep_alive: bytes = b": keep-alive\n\n"
    failure: Callable[[TetradError], bytes] = lambda error: event(error_body(error))
    media_type: str = "text/event-stream"


OPENAI = StreamForm()


async def until_disconnected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Return the result of `work`; cancel it and raise ClientDisconnect if the client disconnects first.

    Args:
        receive: of a request whose body has been read.
        work: runs in the caller's task.
    """
    async with _WhileConnected(receive):
        return await work


class _WhileConnected:
    """Cancels its body when the client goes away, and makes ClientDisconnect of that: what asyncio.timeout is to time.

    The body stays in the caller's task: a task of its own costs several turns of the event loop, which are some milliseconds
    when many requests run.

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
        self._listener.add_done_callback(self._on_heard)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._listener.remove_done_callback(self._on_heard)
        self._listener.cancel()
        if self._has_left and self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise ClientDisconnect from error

    def _on_heard(self, _: "asyncio.Task[None]") -> None:
        self._has_left = True
        self._task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events. It begins with its first event: an error that comes before has its own status.

    A first event that takes longer than proxies wait comes behind the status; errors are events then, too.

    Args:
        pieces: events; a TetradError becomes an error event. Always closed.
        form: of the API.
        keep_alive_s: seconds without news after which something is said all the same.
        at_once: begin before there is any event.
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
        # The length is not known.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the response; raises what happens before it begins."""
        try:
            await until_disconnected(receive, self._send(send))
        except ClientDisconnect:
            if not self._has_begun:
                raise
            log.info("http.client_left")
        finally:
            # Also where the client left before anything was sent.
            await _close(self._pieces)

    async def _send(self, send: Send) -> None:
        silence = _Silence(lambda: self._put(send, self._form.keep_alive), self._keep_alive_s)
        try:
            if self._at_once:
                await self._put(send, b"")
            try:
                if (first := await anext(self._pieces, None)) is not None:
                    silence.timer.note()
                    await self._put(send, first)
                    # A resumed task runs through the awaits of all middleware; frequent pieces get a task of their own.
                    await asyncio.create_task(self._send_rest(send, silence.timer))
            except Exception as error:
                if not self._has_begun:
                    raise
                # The status is gone: an error event is what is left.
                await self._put(send, self._form.failure(_as_tetrad_error(error)))
            await silence.stop()
            await self._put(send, self._form.closing, more_body=False)
        finally:
            await silence.stop()

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


class _Silence:
    """Breaks the silence of a stream, unless its client has not even read what was said before.

    Args:
        say: writes a whole event, so that those of two tasks do not mix.
        interval_s: how long silence may last.
    """

    def __init__(self, say: Callable[[], Coroutine[Any, Any, None]], interval_s: float) -> None:
        self._say = say
        self._task: asyncio.Task[None] | None = None
        self.timer = IdleTimer(interval_s, self._break)

    def _break(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._say())

    async def stop(self) -> None:
        """Say nothing more. Again: a no-op."""
        self.timer.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def stream_response(request: Request, pieces: AsyncIterator[bytes], form: StreamForm = OPENAI) -> EventStream:
    """Return the response for `pieces`."""
    return EventStream(pieces, form=form, keep_alive_s=request.app.state.settings.sse_keep_alive_s)


async def _close(pieces: AsyncIterator[bytes]) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()
