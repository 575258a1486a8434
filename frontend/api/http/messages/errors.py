"""Errors of the Messages API: makes Anthropic's error bodies for routes, streams and refusals before a route."""

from typing import Any

from starlette.responses import Response

from tetrad.frontend.api.http.schemas.errors import error_response, status_of
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.services.errors import InvalidRequest, PromptTooLong, TetradError

MESSAGES_PATH = "/v1/messages"


class ThreadUnsupported(InvalidRequest):
    """The request expects the server to keep the conversation. Anthropic's client then sends all of it each time."""

    reason = "THREAD_UNSUPPORTED_REQUEST"


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(error: TetradError, request_id: str) -> dict[str, Any]:
    """Return the error object, which is also the data of an error event. Its text names the field, as it has no key for it."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    found: dict[str, Any] = {"type": kind, "message": _message(error)}
    if isinstance(error, ThreadUnsupported):
        found["details"] = {"error_code": error.reason.lower(), "unsupported": [error.field]}
    return {"type": "error", "error": found, "request_id": request_id}


def _message(error: TetradError) -> str:
    if isinstance(error, PromptTooLong):
        # Clients shorten the conversation after an error with these words of Anthropic's, as Claude Code does.
        numbers = "" if error.num_tokens is None else f": {error.num_tokens} tokens > {error.max_model_len} maximum"
        return f"prompt is too long{numbers}. {error.message}"
    is_named = error.field is None or error.field in error.message
    return error.message if is_named else f"{error.field}: {error.message}"


def messages_error_response(error: TetradError, request_id: str) -> Response:
    """Return the response to a failed request; status and headers are the same as in all APIs."""
    plain = error_response(error)
    headers = {name: value for name, value in plain.headers.items() if name not in ("content-length", "content-type")}
    return JsonResponse(messages_error(error, request_id), status_code=plain.status_code, headers=headers)
