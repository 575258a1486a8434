"""MessagesRoute: makes every answer of a route Anthropic's: its errors, and the header that its clients log."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tetrad.frontend.api.http.messages_api.errors import messages_error_response
from tetrad.services.errors import InternalError, InvalidRequest, TetradError
from tetrad.services.log import get_logger

log = get_logger()

_REQUEST_ID = "request-id"
_METHOD_NOT_ALLOWED = 405


class MessagesRoute(APIRoute):
    """A route of the Messages API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its errors answered."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                with _bugs_hidden(request.url.path):
                    return _Answer(await handler(request), request)
            except TetradError as error:
                return _refusal(error, request)

        return answer

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to this path, also one of a method that it does not take."""
        if scope["method"] in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        request_id = str(scope["state"]["request_id"])
        error = InvalidRequest(f"{scope['path']} does not take {scope['method']} requests.")
        response = messages_error_response(error, request_id)
        response.status_code = _METHOD_NOT_ALLOWED
        response.headers["Allow"] = ", ".join(sorted(self.methods or ()))
        response.headers[_REQUEST_ID] = request_id
        await response(scope, receive, send)


class _Answer(Response):
    """An answer, in this API's form even if it fails before it has begun.

    Args:
        response: the same; knows how to fail later.
        request: what it answers.
    """

    def __init__(self, response: Response, request: Request) -> None:
        self._response = response
        self._request = request
        response.headers[_REQUEST_ID] = str(request.state.request_id)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            with _bugs_hidden(self._request.url.path):
                await self._response(scope, receive, send)
        except TetradError as error:
            await _refusal(error, self._request)(scope, receive, send)


@contextmanager
def _bugs_hidden(path: str) -> Iterator[None]:
    """As on_bug: the log has the traceback, the client no inner text."""
    try:
        yield
    except (ClientDisconnect, TetradError):
        raise
    except Exception as error:
        log.error("http.failed", path=path, exc_info=error)
        raise InternalError(f"{path} failed; the server's log has the details.") from error


def _refusal(error: TetradError, request: Request) -> Response:
    request_id = str(request.state.request_id)
    response = messages_error_response(error, request_id)
    response.headers[_REQUEST_ID] = request_id
    return response
