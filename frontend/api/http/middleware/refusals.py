"""Refusals: answers requests that do not reach their route with an error in the form of the path's API."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tetrad.frontend.api.http.messages.errors import MESSAGES_PATH, messages_error_response
from tetrad.frontend.api.http.ollama.errors import OLLAMA_PATH, ollama_error_response
from tetrad.frontend.api.http.schemas.errors import error_response
from tetrad.services.errors import NotFound, TetradError


def refusal(scope: Scope, error: TetradError) -> Response:
    """Return the error response; the state of `scope` has the request's id."""
    if scope["path"].startswith(MESSAGES_PATH):
        return messages_error_response(error, str(scope["state"]["request_id"]))
    if scope["path"].startswith(OLLAMA_PATH):
        return ollama_error_response(error)
    return error_response(error)


async def on_unknown_path(request: Request, _: Exception) -> Response:
    """Answer a request to a path that no route has."""
    return refusal(request.scope, NotFound(f"There is nothing at {request.url.path}."))
