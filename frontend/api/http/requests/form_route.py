"""FormRoute: answers all errors of a route in the form of its API: those before, in and after its handler."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tetrad.services.errors import InternalError, InvalidRequest, TetradError
from tetrad.services.log import get_logger

log = get_logger()

_METHOD_NOT_ALLOWED = 405


class FormRoute(APIRoute):
    """A route whose errors have another form than OpenAI's."""

    id_header: str | None = None
    """Name of a header with the request's id, besides X-Request-Id; None: no other header has it."""

    def refusal(self, error: TetradError, request_id: str) -> Response:
        """Return the response to a failed request."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, wrapped so that its errors are answered."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                with _bugs_hidden(request.url.path):
                    return _Answer(self, await handler(request), request)
            except TetradError as error:
                request_id = str(request.state.request_id)
                return self.with_id(self.refusal(error, request_id), request_id)

        return answer

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to this path, also one with a method that it does not support."""
        if scope["method"] in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        request_id = str(scope["state"]["request_id"])
        error = InvalidRequest(f"{scope['path']} does not take {scope['method']} requests.")
        response = self.with_id(self.refusal(error, request_id), request_id)
        response.status_code = _METHOD_NOT_ALLOWED
        response.headers["Allow"] = ", ".join(sorted(self.methods or ()))
        await response(scope, receive, send)

    def with_id(self, response: Response, request_id: str) -> Response:
        """Add the request's id to a response's headers, and return the response."""
        if self.id_header is not None:
            response.headers[self.id_header] = request_id
        return response


class _Answer(Response):
    """An answer whose errors before its start have the form of the API.

    Args:
        route: makes the error responses.
        response: the original response, which handles errors after its start.
        request: the request to answer.
    """

    def __init__(self, route: FormRoute, response: Response, request: Request) -> None:
        self._route = route
        self._response = route.with_id(response, str(request.state.request_id))
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            with _bugs_hidden(self._request.url.path):
                await self._response(scope, receive, send)
        except TetradError as error:
            request_id = str(self._request.state.request_id)
            await self._route.with_id(self._route.refusal(error, request_id), request_id)(scope, receive, send)


@contextmanager
def _bugs_hidden(path: str) -> Iterator[None]:
    """Log an unexpected exception with its traceback and raise InternalError without its text, like on_bug."""
    try:
        yield
    except (ClientDisconnect, TetradError):
        raise
    except Exception as error:
        log.error("http.failed", path=path, exc_info=error)
        raise InternalError(f"{path} failed; the server's log has the details.") from error
