"""Errors of Ollama's API: makes its error bodies for routes, streams and refusals before a route."""

from starlette.responses import Response

from tetrad.frontend.api.http.schemas.errors import error_response
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.services.errors import TetradError

OLLAMA_PATH = "/api/"


def ollama_error(error: TetradError) -> dict[str, str]:
    """Return the error object. Its text names the field, as it has no key for it."""
    named = error.field is None or error.field in error.message
    return {"error": error.message if named else f"{error.field}: {error.message}"}


def ollama_error_response(error: TetradError) -> Response:
    """Return the response to a failed request; status and headers are the same as in all APIs."""
    plain = error_response(error)
    headers = {name: value for name, value in plain.headers.items() if name not in ("content-length", "content-type")}
    return JsonResponse(ollama_error(error), status_code=plain.status_code, headers=headers)
