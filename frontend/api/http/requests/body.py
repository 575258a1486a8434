"""Bodies: reads the JSON body of a request, within limits, into its model.

A budget limits the memory of all bodies that are being read, so that many large ones cannot exhaust it.
"""

import asyncio
import re
import time
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from tetrad.frontend.api.http.requests.named import models_of
from tetrad.frontend.api.http.schemas.errors import BodyTooLarge, UnsupportedMediaType, from_validation
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.request.deadlines import earliest_deadline, within
from tetrad.services.errors import InvalidRequest, Overloaded

Model = TypeVar("Model", bound=BaseModel)

_SURROGATES = re.compile(rb"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(?P<lone>\\ud[89a-f][0-9a-f]{2})", re.IGNORECASE)
# A part of a string's content; with possessive quantifiers, so that no input causes backtracking.
_INSIDE = re.compile(rb"(?:[^\"\\]{1,4096}+|\\.){0,16}+", re.DOTALL)
_TURN_S = 0.003
_SLICE_BYTES = 1 << 20


class BodyBudget:
    """The memory budget of all bodies together.

    Args:
        max_bytes: maximum size of all bodies at a time.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def open(self) -> "BodyShare":
        """Return a share for one body."""
        return BodyShare(self)

    def take(self, num_bytes: int, num_before: int) -> None:
        """Count received bytes of a body; Overloaded beyond the budget. A single body is always accepted.

        Args:
            num_bytes: the number of new bytes.
            num_before: the number of bytes of this body that were counted before.
        """
        if self.num_bytes > num_before and self.num_bytes + num_bytes > self._max_bytes:
            text = f"Bodies of {self.num_bytes} bytes are being read; at most {self._max_bytes} are taken together."
            raise Overloaded(f"{text} Try again later.")
        self.num_bytes += num_bytes


class BodyShare:
    """The share of one body in the budget, until it has been parsed.

    Args:
        budget: the budget of all bodies.
    """

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Count received bytes; Overloaded beyond the budget."""
        self._budget.take(num_bytes, self._num_bytes)
        self._num_bytes += num_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._budget.num_bytes -= self._num_bytes


async def read_body(request: Request, model: type[Model], *, any_content_type: bool = False) -> Model:
    """Return the body as `model`; InvalidRequest (400, 413 or 415) with the reason if it is invalid.

    With `any_content_type`, programs need not declare JSON. Web pages, whose requests have an Origin, must: for other types,
    browsers do not ask the server first whether the page's origin is allowed.
    """
    if not any_content_type or "origin" in request.headers:
        _check_content_type(request)
    settings: FrontendSettings = request.app.state.settings
    with request.app.state.bodies.open() as share:
        body = await read_bytes(request, settings.max_body_bytes, share)
        await check_shape(body, max_objects=settings.max_body_objects, max_values=settings.max_body_values)
        return _parsed(body, model)


async def read_prompt_body(request: Request, model: type[Model], *, any_content_type: bool = False) -> Model:
    """Return the body of a generation request; Overloaded (429), before it is read, if the server is full."""
    models_of(request).admission.check()
    return await read_body(request, model, any_content_type=any_content_type)


def _check_content_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedMediaType(f"The body must be application/json, got {content_type!r}.")


def _parsed(body: bytes, model: type[Model]) -> Model:
    try:
        if not body.isascii():  # images in base64 are, and large
            body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not UTF-8: byte {error.start} is {body[error.start]:#04x}.") from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _lone_surrogate(body) or from_validation(error) from None


def _lone_surrogate(body: bytes) -> InvalidRequest | None:
    """Return a clear error if the body has a lone surrogate, which the parser reports unclearly; None if it has none."""
    found = next((match for match in _SURROGATES.finditer(body) if match["lone"]), None)
    if found is None:
        return None
    text = f"The body contains the lone surrogate {found['lone'].decode()} at byte {found.start()}: it is not valid text."
    return InvalidRequest(text)


async def read_bytes(request: Request, limit: int, share: BodyShare) -> bytes:
    """Return the body of a request.

    Args:
        request: the HTTP request.
        limit: maximum number of bytes.
        share: counts them in the memory of all bodies.

    Raises:
        InvalidRequest: the body is compressed (415) or too large (413).
        Overloaded: other bodies take the memory.
        DeadlineExceeded: the request's time is over.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaType(f"Content-Encoding {encoding[:64]!r} is not supported: send the body as it is.")
    async with within(earliest_deadline(None)):
        return await _read(request, limit, share)


async def _read(request: Request, limit: int, share: BodyShare) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge(f"The body has {declared} bytes; at most {limit} are taken (max_body_bytes).")
    body = bytearray()
    async for piece in request.stream():
        share.take(len(piece))
        body += piece
        if len(body) > limit:
            raise BodyTooLarge(f"The body has more than {limit} bytes; at most {limit} are taken (max_body_bytes).")
    return bytes(body)


async def check_shape(body: bytes, *, max_objects: int, max_values: int) -> None:
    """Raise InvalidRequest for a body that is expensive to parse: count its objects and values before the parser builds them.

    Text is fast to parse at any size; a million small objects block the event loop for seconds. Counting the bytes of brackets
    and commas takes milliseconds. If text contains such bytes, too, the body is scanned in small steps, and other tasks run
    between them. The check knows strings and brackets only; the parser checks validity.

    Args:
        body: the body; it may be invalid JSON.
        max_objects: maximum number of objects and lists.
        max_values: maximum number of values in them.
    """
    if await _count(body, b"{", b"[") <= max_objects and await _count(body, b",") <= max_values:
        return
    num_objects, num_values, pos = 0, 1, 0
    turn_ends = time.monotonic() + _TURN_S
    while pos < len(body):
        quote = body.find(b'"', pos)
        end = len(body) if quote < 0 else quote
        num_objects += body.count(b"{", pos, end) + body.count(b"[", pos, end)
        num_values += body.count(b",", pos, end)
        if num_objects > max_objects:
            raise InvalidRequest(f"The body holds more than {max_objects} objects and lists, the most that are taken.")
        if num_values > max_values:
            raise InvalidRequest(f"The body holds more than {max_values} values, the most that are taken.")
        pos = end + 1
        while pos < len(body) and body[pos] != ord('"'):
            inside = _INSIDE.match(body, pos)
            if inside is None or inside.end() == pos:
                return  # the body ends inside a string
            pos = inside.end()
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _TURN_S
        pos += 1
        if time.monotonic() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.monotonic() + _TURN_S


async def _count(body: bytes, *signs: bytes) -> int:
    """Return how often any of the signs is in a body, in slices between which other tasks run."""
    number = 0
    for start in range(0, len(body), _SLICE_BYTES):
        if start:
            await asyncio.sleep(0)
        number += sum(body.count(sign, start, start + _SLICE_BYTES) for sign in signs)
    return number
