"""FormRoute: answers the errors of a route in the form of its API, whenever they happen: before, in and after its handler."""

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
    """A route whose errors have a form of their own."""

    id_header: str | None = None
    """Header in which answers carry the request's id, besides X-Request-Id; None: in no other."""

    def refusal(self, error: TetradError, request_id: str) -> Response:
        """Return the response to a request that failed."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its errors answered."""
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
        """Answer a request to this path, also one of a method that it does not take."""
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
        """Return a response with the header that carries the request's id."""
        if self.id_header is not None:
            response.headers[self.id_header] = request_id
        return response


class _Answer(Response):
    """An answer, in this API's form even if it fails before it has begun.

    Args:
        route: gives errors their form.
        response: the same; knows how to fail later.
        request: what it answers.
    """

    def __init__(self, route: FormRoute, response: Response, request: Request) -> None:
        self._route = route
        self._response = route.with_id(response, str(request.state.request_id))
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            with _bugs_hidden(self._request.url.path):
                await self._response(scope, receive, send)
        except TetradError as error:
            request_id = str(self._request.state.request_id)
            await self._route.with_id(self._route.refusal(error, request_id), request_id)(scope, receive, send)


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
