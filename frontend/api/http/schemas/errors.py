"""Errors over HTTP: maps every TetradError to its HTTP status and OpenAI's error body."""

import math
import reprlib
from http import HTTPStatus

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.schemas.objects import ErrorBody, ErrorDetail, JsonResponse, encode
from tetrad.services.errors import Code, InternalError, InvalidRequest, TetradError
from tetrad.services.log import get_logger

log = get_logger()

_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.FAILED_PRECONDITION: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNAVAILABLE: 503,
    Code.UNIMPLEMENTED: 501,
}
_TYPES = {401: "authentication_error", 403: "permission_error", 409: "invalid_request_error", 429: "rate_limit_error"}
# Reason -> OpenAI's own code.
_CODES = {"INVALID_ARGUMENT": "invalid_value"}
_RETRY_AFTER_S = 1.0
# What a value of a wrong JSON type must be, by pydantic's error type.
_FORMS = {
    "float_type": "a number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BRANCHES = ("str", "int", "float", "bool", "dict", "list")
_ITEMS = {"int_type": "integers", "int_from_float": "integers", "string_type": "strings", "float_type": "numbers"}


class BodyTooLarge(InvalidRequest):
    """The body is larger than the server's limit."""

    reason = "BODY_TOO_LARGE"


class UnsupportedMediaType(InvalidRequest):
    """The body is not JSON."""

    reason = "UNSUPPORTED_MEDIA_TYPE"


_STATUS_BY_REASON = {BodyTooLarge.reason: 413, UnsupportedMediaType.reason: 415}


def status_of(error: TetradError) -> int:
    """Return the HTTP status of an error."""
    return _STATUS_BY_REASON.get(error.reason) or _STATUS.get(error.code, 500)


def error_body(error: TetradError) -> ErrorBody:
    """Return OpenAI's error object."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return _body(error.message, kind, error.field, _CODES.get(error.reason, error.reason.lower()))


def error_response(error: TetradError) -> Response:
    """Return the response to a failed request."""
    status = status_of(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s or _RETRY_AFTER_S))
    return JsonResponse(error_body(error), status_code=status, headers=headers)


def from_validation(error: ValidationError) -> InvalidRequest:
    """Return the error of the first invalid field of a body, with texts like those of SamplingParams."""
    errors = error.errors(include_url=False)
    # Each branch of a union has its own error: the one with the longest path belongs to the form that the client meant.
    found = max((each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]), key=lambda each: len(_path(each["loc"])))
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, InvalidRequest):
        return cause
    if found["type"] == "json_invalid":
        return InvalidRequest(f"The body is not valid JSON: {cause or found['msg']}.")
    path, given = _path(found["loc"]), _short(found["input"])
    if len(path) == 2 and isinstance(path[1], int) and found["type"] in _ITEMS:
        name = str(path[0])
        return InvalidRequest(f"{name} must contain only {_ITEMS[found['type']]}, got {given}.", field=name)
    field = ".".join(str(part) for part in path) or None
    message = found["msg"].removeprefix("Value error, ")
    if field is None:
        return InvalidRequest(f"The body must be {_FORMS[found['type']]}." if found["type"] in _FORMS else message)
    if found["type"] == "missing":
        return InvalidRequest(f"{field}: {message}", field=field)
    if found["type"] in _FORMS:
        forms = dict.fromkeys(_FORMS[each["type"]] for each in errors if each["type"] in _FORMS and _path(each["loc"]) == path)
        return InvalidRequest(f"{field} must be {' or '.join(forms)}, got {given}.", field=field)
    return InvalidRequest(f"{field}: {message}, got {given}", field=field)


def _path(location: tuple[int | str, ...]) -> list[int | str]:
    """Return the fields in an error's location, without the branches of unions ("str", "list[int]")."""
    parts = [part for part in location if isinstance(part, int) or part.isidentifier()]
    return [part for part in parts if part not in _BRANCHES and not str(part)[:1].isupper()]


async def on_tetrad_error(_: Request, error: Exception) -> Response:
    """Answer a TetradError."""
    return error_response(error if isinstance(error, TetradError) else InternalError(str(error)))


async def on_wrong_parameter(_: Request, error: Exception) -> Response:
    """Answer an invalid parameter of the path or query with 400, like an invalid field of a body."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return error_response(InvalidRequest(f"{field}: {first['msg']}, got {_short(first['input'])}", field=field))


def protocol_error_body(error: TetradError) -> bytes:
    """Return the body of the answer to malformed HTTP."""
    return encode(error_body(error))


async def on_router_error(request: Request, error: Exception) -> Response:
    """Answer other requests that the router refuses than those of unknown paths: methods, mostly."""
    assert isinstance(error, HTTPException)
    wrong_method = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
    text = f"{request.url.path} does not take {request.method} requests." if wrong_method else str(error.detail)
    body = _body(text, "invalid_request_error", None, "method_not_allowed" if wrong_method else None)
    return JsonResponse(body, status_code=error.status_code, headers=error.headers)


async def on_bug(request: Request, error: Exception) -> Response:
    """Answer any other exception: log its traceback, and send no internal text to the client."""
    log.error("http.failed", path=request.url.path, exc_info=error)
    return error_response(InternalError(f"{request.url.path} failed; the server's log has the details."))


def _body(message: str, kind: str, param: str | None, code: str | None) -> ErrorBody:
    return ErrorBody(ErrorDetail(message, kind, param, code))


_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = _shortener.maxlong = 80


def _short(value: object) -> str:
    """Return the shortened `repr` of a value, which may be as large as a body."""
    text = _shortener.repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
