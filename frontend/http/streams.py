"""Streams: server-sent events that cost little per chunk, and work that ends when its client goes away.

A client that disconnects cancels the work for it, streaming or not; the work's own clean-up then aborts the request. A client
that reads slowly holds up its own work only: what it does not take waits in the request's collector, merged.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tetrad.frontend.http.errors import error_body
from tetrad.frontend.http.responses import event
from tetrad.services.errors import InternalError, TetradError
from tetrad.services.idle_timer import IdleTimer
from tetrad.services.log import get_logger

log = get_logger()

Result = TypeVar("Result")


@dataclass(frozen=True)
class StreamForm:
    """What a stream of one API says besides its news.

    Attributes:
        closing: the last bytes, for APIs that mark the end.
        keep_alive: says nothing, for proxies that end connections on which nothing is said.
        failure: an error that comes when the status is gone -> an event.
    """

    closing: bytes = b"data: [DONE]\n\n"
    keep_alive: bytes = b": keep-alive\n\n"
    failure: Callable[[TetradError], bytes] = lambda error: event(error_body(error))


OPENAI = StreamForm()


async def until_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what `work` returns; cancel it and raise ClientDisconnect if the client goes away first.

    Args:
        receive: of a request whose body has been read.
        work: started at once.
    """
    task = asyncio.create_task(work)
    try:
        await _wait(receive, task, timeout_s=None)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _wait(receive: Receive, task: asyncio.Task[Any], *, timeout_s: float | None) -> None:
    """Wait until `task` is done or the time is over; ClientDisconnect if the client goes away before."""
    listener = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, listener}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if listener.done() and not task.done():
            raise ClientDisconnect
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events.

    Args:
        first: the first bytes.
        rest: further bytes; a TetradError becomes an error event. Always closed.
        form: of the API.
        keep_alive_s: seconds without news after which something is said all the same.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncIterator[bytes], *, form: StreamForm, keep_alive_s: float) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._first = first
        self._rest = rest
        self._form = form
        self._keep_alive_s = keep_alive_s
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # The length is not known.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the response."""
        try:
            await until_disconnected(receive, self._send(send))
        except ClientDisconnect:
            log.info("http.client_left")
        finally:
            # Also where the client left before anything was sent.
            await _close(self._rest)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        silence = _Silence(send, self._form.keep_alive, self._keep_alive_s)
        try:
            try:
                async for piece in self._rest:
                    silence.timer.note()
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TetradError as error:
                await send({"type": "http.response.body", "body": self._form.failure(error), "more_body": True})
            except Exception as error:  # The status is gone: an error event is what is left.
                log.error("http.stream_failed", exc_info=error)
                failed = InternalError("The stream failed; the server's log has the details.")
                await send({"type": "http.response.body", "body": self._form.failure(failed), "more_body": True})
            await silence.stop()
            await send({"type": "http.response.body", "body": self._form.closing, "more_body": False})
        finally:
            await silence.stop()


class _Silence:
    """Breaks the silence of a stream, unless its client has not even read what was said before.

    Args:
        send: of the response; each call writes a whole event, so that those of two tasks do not mix.
        saying: what is said.
        interval_s: how long silence may last.
    """

    def __init__(self, send: Send, saying: bytes, interval_s: float) -> None:
        self._send = send
        self._saying = saying
        self._task: asyncio.Task[None] | None = None
        self.timer = IdleTimer(interval_s, self._break)

    def _break(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._say())

    async def _say(self) -> None:
        await self._send({"type": "http.response.body", "body": self._saying, "more_body": True})

    async def stop(self) -> None:
        """Say nothing more. Again: a no-op."""
        self.timer.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def stream_response(request: Request, pieces: AsyncIterator[bytes], form: StreamForm = OPENAI) -> EventStream:
    """Return the response for `pieces` once the first exists, raising what happens before, so that errors have their status.

    A first piece that takes longer than proxies wait comes behind the status; errors are events then, too.
    """
    keep_alive_s: float = request.app.state.settings.sse_keep_alive_s
    first = asyncio.create_task(_first(pieces))
    try:
        await _wait(request.receive, first, timeout_s=keep_alive_s)
        if first.done():
            return EventStream(first.result(), pieces, form=form, keep_alive_s=keep_alive_s)
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await _close(pieces)
        raise
    return EventStream(form.keep_alive, _LatePieces(first, pieces), form=form, keep_alive_s=keep_alive_s)


async def _first(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces)


class _LatePieces:
    """Pieces of which the first is still to come. Closing them ends the work for it, begun or not, as a generator would not.

    Args:
        first: brings the first.
        pieces: have the others.
    """

    def __init__(self, first: asyncio.Task[bytes], pieces: AsyncIterator[bytes]) -> None:
        self._first: asyncio.Task[bytes] | None = first
        self._pieces = pieces

    def __aiter__(self) -> "_LatePieces":
        return self

    async def __anext__(self) -> bytes:
        first = self._first
        if first is None:
            return await anext(self._pieces)
        piece = await first
        self._first = None
        return piece

    async def aclose(self) -> None:
        """End the work."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await _close(self._pieces)


async def _close(pieces: AsyncIterator[bytes]) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()
