"""Lines: parses an OpenAI batch file to requests, one per line, and reports invalid lines.

Reads the file line by line, twice: once for its ids, once for its requests; so only the ids are kept in memory.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tetrad.services.errors import InvalidRequest, NotFound

RECORDING_URLS = ("/v1/audio/transcriptions", "/v1/audio/translations")
"""The endpoints whose requests have a recording; its URL is the body's `file_url`, as in vLLM."""
URLS = (
    *RECORDING_URLS,
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
    "/v2/rerank",
    "/v2/embed",
    "/classify",
    "/pooling",
)
"""The endpoints that lines may use."""

Key = str | int
"""The key of a line's result: its custom_id, or its number, counted from 1."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The request of a valid line. `number` is the number of the line."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]

    @property
    def key(self) -> Key:
        """The key of the result."""
        return self.custom_id


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid line, with a `code` for programs and a `message` for users."""

    number: int
    custom_id: str | None
    code: str
    message: str

    @property
    def key(self) -> Key:
        """The key of the result."""
        return self.number if self.custom_id is None else self.custom_id


Line = BatchRequest | BadLine


class _BadLineError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the request, or the error, of each line; empty lines are skipped."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                # Some editors write a byte-order mark at the start of a file.
                text = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
                if text:
                    yield _line_of(number, text)
    except OSError as error:
        raise NotFound(f"Cannot read the batch file {path}: {error.strerror or error}.") from error


def keys_of(path: Path) -> dict[Key, int]:
    """Return the key of every line and the line's number, in the order of the file.

    Raises:
        InvalidRequest: two lines have the same custom_id, so that their results could not be distinguished; or the file is not
            a regular one, so that it cannot be read again.
        NotFound: the file does not exist.
    """
    if os.path.exists(path) and not path.is_file():  # noqa: PTH110 - takes a name that is too long
        text = f"{path} is not a regular file; a batch is read twice, so write it to a file."
        raise InvalidRequest(text, field="input_file")
    numbers: dict[Key, int] = {}
    for line in read_lines(path):
        first = numbers.setdefault(line.key, line.number)
        if first != line.number:
            raise InvalidRequest(
                f"custom_id {line.key!r} is on line {first} and again on line {line.number} of {path}: results could not be"
                " told apart. Give every line its own.",
                field="custom_id",
            )
    return numbers


def _line_of(number: int, text: bytes) -> Line:
    custom_id = None
    try:
        fields = _object(text)
        custom_id = _custom_id(fields)
        _check(fields)
    except _BadLineError as error:
        return BadLine(number, custom_id, error.code, f"Line {number}: {error.message}")
    return BatchRequest(number, custom_id, fields["url"], fields["body"])


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _BadLineError("invalid_json", f"not UTF-8 at byte {error.start}.") from None
    except RecursionError:
        raise _BadLineError("invalid_json", "nested too deeply.") from None
    except ValueError as error:
        raise _BadLineError("invalid_json", f"not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise _BadLineError("invalid_json", f"a JSON object is expected, got {type(value).__name__}.")
    return value


def _custom_id(fields: dict[str, Any]) -> str:
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise _BadLineError("invalid_custom_id", f"custom_id must be a string that is not empty, got {custom_id!r}.")
    return custom_id


def _check(fields: dict[str, Any]) -> None:
    method, url, body = fields.get("method"), fields.get("url"), fields.get("body")
    if method != "POST":
        raise _BadLineError("invalid_method", f"method must be 'POST', got {method!r}.")
    if url not in URLS:
        raise _BadLineError("invalid_url", f"url must be one of {', '.join(URLS)}, got {url!r}.")
    if not isinstance(body, dict):
        raise _BadLineError("invalid_body", f"body must be a JSON object, got {type(body).__name__}.")
    if url in RECORDING_URLS:
        _check_recording(body)
    if body.get("stream"):
        raise _BadLineError("invalid_body", "stream=true is not possible in a batch; leave it out.")


def _check_recording(body: dict[str, Any]) -> None:
    url = body.get("file_url")
    if not isinstance(url, str) or url.partition(":")[0].lower() not in ("data", "http", "https"):
        shown = f"{url:.64}" if isinstance(url, str) else type(url).__name__
        raise _BadLineError("invalid_body", f"file_url must be a data:, http: or https: URL of a recording, got {shown}.")
    form = body.get("response_format", "json")
    if form not in ("json", "verbose_json"):
        raise _BadLineError("invalid_body", f"response_format must be json or verbose_json in a batch, got {form!r:.64}.")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
