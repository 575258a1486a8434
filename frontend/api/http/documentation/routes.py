"""Route documentation: makes the entries of /openapi.json for routes that parse bodies and write answers themselves."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.requests import REQUESTS
from tetrad.frontend.api.http.documentation.schemas import Schema, body_schema, either, field, obj, struct_schema
from tetrad.frontend.api.http.schemas.errors import BodyTooLarge, UnsupportedMediaType, error_body
from tetrad.frontend.api.http.schemas.objects import ErrorBody
from tetrad.services.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    TetradError,
    Unauthenticated,
    Unavailable,
)

_ERRORS: dict[int, tuple[str, TetradError]] = {
    400: ("The request is wrong.", InvalidRequest("temperature must be in [0, 2], got 3.0.", field="temperature")),
    401: ("An API key is needed, and this is none.", Unauthenticated("Incorrect API key provided.", reason="INVALID_API_KEY")),
    403: ("The caller may not do this.", PermissionDenied("This endpoint is for operators.")),
    404: ("There is no such thing.", NotFound("The model `x` does not exist.", field="model", reason="MODEL_NOT_FOUND")),
    409: (
        "It is so already, is being used, or is impossible in the present state.",
        AlreadyExists("A profile is being recorded; stop it first."),
    ),
    413: (
        "The body is too large.",
        BodyTooLarge("The body has more than 33554432 bytes; at most 33554432 are taken (max_body_bytes)."),
    ),
    415: ("The body is not JSON.", UnsupportedMediaType("The body must be application/json, got 'text/plain'.")),
    429: ("Too much is queued; Retry-After says when to come back.", Overloaded("The queue is full.")),
    500: ("A bug of this server's.", InternalError("The request failed; the server's log has the details.")),
    504: (
        "The request's time was over: X-Request-Timeout, or the server's limit.",
        DeadlineExceeded("The request was not finished within its time limit of 30 s."),
    ),
    503: ("Not now: starting, stopping or lost.", Unavailable("This server is shutting down; try again.")),
}
_OF_BODIES = (400, 401, 404, 413, 415, 429, 500, 503, 504)
_OF_OTHERS = (401, 500, 503)


@dataclass(frozen=True)
class ErrorForm:
    """The form of an API's error bodies.

    Attributes:
        schema: schema of the body.
        body: returns the body of an error.
    """

    schema: Schema
    body: Callable[[TetradError], Any]


OPENAI_ERRORS = ErrorForm(struct_schema(ErrorBody), lambda error: msgspec.to_builtins(error_body(error)))
TAGS = [
    {"name": "generate", "description": "Text from prompts and conversations."},
    {"name": "pool", "description": "Embeddings, classes and scores of texts, by models that pool instead of generating."},
    {"name": "tokens", "description": "What the model makes of a text, and the other way round."},
    {"name": "models", "description": "What is served."},
    {"name": "monitor", "description": "For load balancers and dashboards."},
    {
        "name": "operate",
        "description": "Changes how everybody is served. Open to holders of an operator key; without such keys, to everybody "
        "on this machine if the server is bound to it and has no keys. See --operator-endpoints.",
    },
]


def documented(
    body: type[BaseModel] | None = None,
    *,
    answer: type[msgspec.Struct] | Schema | None = None,
    example: object = None,
    text: str | None = None,
    events: Schema | None = None,
    lines: Schema | None = None,
    tag: str = "generate",
    errors: tuple[int, ...] | None = None,
    error_form: ErrorForm = OPENAI_ERRORS,
    body_type: str = "application/json",
) -> dict[str, Any]:
    """Return the arguments of a route that document its bodies and answers.

    Args:
        body: model of the body. None: the route has no body.
        answer: the JSON answer, as a struct or a schema. None: the answer is not JSON, or empty.
        example: an example of the JSON answer.
        text: an example of a plain-text answer.
        events: content of a streamed answer; see `stream_of_chunks` and `stream_of_events`.
        lines: content of an answer streamed as lines; see `stream_of_lines`.
        tag: one of TAGS.
        errors: statuses of errors; by default those of all routes with, or without, a body.
        error_form: form of the errors.
        body_type: media type of the body.
    """
    content: Schema = {}
    if answer is not None:
        shown: Schema = {"schema": answer if isinstance(answer, dict) else struct_schema(answer)}
        content["application/json"] = shown | ({} if example is None else {"example": example})
    if text is not None:
        content["text/plain"] = {"schema": {"type": "string"}, "example": text}
    if events is not None:
        content["text/event-stream"] = events
    if lines is not None:
        content["application/x-ndjson"] = lines
    responses: dict[int | str, Any] = {200: {"description": "The answer.", "content": content}}
    if errors is None:
        errors = _OF_OTHERS if body is None else _OF_BODIES
    responses |= {status: _error(status, error_form) for status in errors}
    route: dict[str, Any] = {
        "response_model": None,
        "response_class": Response,
        "tags": [tag],
        "responses": responses,
    }
    if body is not None:
        route["openapi_extra"] = _RequestBody(body, body_type)
    return route


class _RequestBody(Mapping[str, Any]):
    """The documentation of a route's body, made when it is read: the schemas of all bodies take a third of a second."""

    def __init__(self, body: type[BaseModel], media_type: str) -> None:
        self._body, self._media_type = body, media_type

    def __getitem__(self, name: str) -> Any:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return 1

    @functools.cached_property
    def _entries(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"schema": body_schema(self._body)}
        if self._body.__name__ in REQUESTS:
            shown["example"] = REQUESTS[self._body.__name__]
        return {"requestBody": {"required": True, "content": {self._media_type: shown}}}


def stream_of_chunks(chunk: type[msgspec.Struct] | Schema) -> Schema:
    """Return the content of a stream of `data: CHUNK` that ends with `data: [DONE]`; an error is a chunk, too."""
    text = "With `stream`: events of `data: JSON`, the last one `data: [DONE]`. An error is an event, too, before that."
    shown = chunk if isinstance(chunk, dict) else struct_schema(chunk)
    data = either(chunk=shown, error=OPENAI_ERRORS.schema)
    return _events(text, obj("data", data=_json_text("A chunk.", data)))


def stream_of_events(data: Schema) -> Schema:
    """Return the content of a stream of named events, whose data have the name as `type`."""
    text = "With `stream`: events of `event: TYPE` and `data: JSON`; the last one says how it ended."
    event = field("string", "The `type` of the data.")
    return _events(text, obj("*", event=event, data=_json_text("What happened.", data)))


def stream_of_lines(answer: type[msgspec.Struct], error: Schema) -> Schema:
    """Return the content of a stream of JSON lines, each a part of the answer; the last one is `done` or an error."""
    text = "With `stream`: a line of JSON for each part of the answer. An error is a line, too, the last one."
    return _events(text, either(line=struct_schema(answer), error=error))


def _events(description: str, item: Schema) -> Schema:
    # itemSchema is OpenAPI 3.2's keyword for the events of a stream; readers of OpenAPI 3.1 see a text.
    return {"schema": {"type": "string", "description": description}, "itemSchema": item}


def _json_text(description: str, schema: Schema) -> Schema:
    return field("string", description, contentMediaType="application/json", contentSchema=schema)


def _error(status: int, form: ErrorForm) -> Schema:
    description, error = _ERRORS[status]
    return {
        "description": description,
        "content": {"application/json": {"schema": form.schema, "example": form.body(error)}},
    }
