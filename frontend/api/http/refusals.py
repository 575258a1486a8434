"""Refusals: the answer to a request that never reaches its route, in the form of the API it asked for. Knows paths only."""

from starlette.responses import Response
from starlette.types import Scope

from tetrad.frontend.api.http.errors import error_response
from tetrad.frontend.api.http.messages_api.errors import MESSAGES_PATH, messages_error_response
from tetrad.services.errors import TetradError


def refusal(scope: Scope, error: TetradError) -> Response:
    """Return the answer; `scope` has the request's id in its state."""
    if scope["path"].startswith(MESSAGES_PATH):
        return messages_error_response(error, str(scope["state"]["request_id"]))
    return error_response(error)
