"""HttpClient: calls the OpenAI API of a running server, for commands. Knows SSE and OpenAI's error body."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tetrad.services.errors import InvalidRequest, NotFound, TetradError, Unavailable, Unsupported
from tetrad.services.packages import require_packages
from tetrad.stack.stack_url import UNIX

require_packages("This command", ("cli",))

import httpx as httpx  # noqa: E402 - modules that need httpx import it from here, and so get the error above
import httpx_sse  # noqa: E402 - behind the same check

DEFAULT_URL = "http://127.0.0.1:8000"
_STATUS_OF_TYPE = {"invalid_request_error": 400, "rate_limit_error": 429}
"""OpenAI's type of an error inside a stream -> the HTTP status of such an error; 500 for all other types."""


class HttpClient:
    """The client of one server.

    Args:
        url: URL of the server, with or without "/v1" at the end, or unix:/path of its socket.
        api_key: sent with every request. None: no key.
        ca_file: certificate authorities to trust for an https URL. None: the system's.
        timeout_s: maximum seconds of one read, for example of one token.
    """

    def __init__(self, url: str, *, api_key: str | None = None, ca_file: Path | None = None, timeout_s: float = 600.0) -> None:
        is_unix = url.startswith(UNIX)
        self.url = url if is_unix else base_url(url)
        trust = trust_of(ca_file)
        self._client = httpx.Client(
            base_url="http://localhost" if is_unix else self.url,
            headers=authorization(api_key),
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            trust_env=False,
            transport=httpx.HTTPTransport(uds=url.removeprefix(UNIX)) if is_unix else None,
            verify=trust,
        )

    def get_json(self, path: str, *, also: int | None = None) -> dict[str, Any]:
        """Return a JSON object, or raise a TetradError. `also`: an error status that is accepted, too."""
        return self._json(path, self.get_text(path, also=also))

    def get_text(self, path: str, *, also: int | None = None) -> str:
        """Return a document as text, or raise a TetradError. `also`: an error status that is accepted, too."""
        try:
            response = self._client.get(path)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        if response.is_error and response.status_code != also:
            raise _error(response.status_code, response.text)
        return response.text

    def post(self, path: str) -> dict[str, Any]:
        """Send a POST request without a body and return the JSON object of the answer; a TetradError for an error status."""
        try:
            response = self._client.post(path)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        if response.is_error:
            raise _error(response.status_code, response.text)
        return self._json(path, response.text)

    def model_name(self, wanted: str | None) -> str:
        """Return the model name for requests: `wanted`, or the server's first model."""
        return wanted or str(self.first_model()["id"])

    def first_model(self) -> dict[str, Any]:
        """Return the server's description of its first model, with at least an `id`; Unavailable if it names none."""
        cards = self.get_json("/v1/models").get("data")
        card = cards[0] if isinstance(cards, list) and cards else None
        if not isinstance(card, dict) or "id" not in card:
            raise Unavailable(f"The server at {self.url} names no model.")
        return card

    def post_form(self, path: str, fields: dict[str, str], file: tuple[str, bytes]) -> str:
        """Send a form with a file, its name and content, and return the answer as text; a TetradError for an error status.

        InvalidRequest is also raised for a field that UTF-8 cannot hold.
        """
        form = _form(fields, file)
        try:
            response = self._client.post(path, **form)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        if response.is_error:
            raise _error(response.status_code, response.text)
        return response.text

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed response as they arrive; raise a TetradError for an error event.

        InvalidRequest is also raised for a body that JSON cannot hold.
        """
        content, headers = _encoded({**body, "stream": True}), {"content-type": "application/json"}
        return self._events(path, content=content, headers=headers)

    def stream_form(self, path: str, fields: dict[str, str], file: tuple[str, bytes]) -> Iterator[dict[str, Any]]:
        """Send a form with a file, its name and content, and yield the events as `stream` does."""
        return self._events(path, **_form({**fields, "stream": "true"}, file))

    def _events(self, path: str, **sent: Any) -> Iterator[dict[str, Any]]:
        try:
            with httpx_sse.connect_sse(self._client, "POST", path, **sent) as source:
                if source.response.is_error:
                    raise _error(source.response.status_code, source.response.read().decode(errors="replace"))
                for event in source.iter_sse():
                    if event.data == "[DONE]":
                        return
                    document = self._json(path, event.data)
                    if error := document.get("error"):
                        kind = str(error.get("type")) if isinstance(error, dict) else ""
                        raise _error(_STATUS_OF_TYPE.get(kind, 500), event.data)
                    yield document
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error

    def _json(self, path: str, text: str) -> dict[str, Any]:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            text = f"The server at {self.url} answers {path} with no JSON object. Is it an OpenAI-compatible server?"
            raise Unavailable(text)
        return document

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()


def base_url(url: str) -> str:
    """Return the URL of a server without "/v1" at its end; InvalidRequest if it is not an http or https URL."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(base)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(base)
    except (ValueError, httpx.InvalidURL):
        is_url = False
    if not is_url:
        raise InvalidRequest(f"{url!r} is not the URL of a server; it has the form {DEFAULT_URL}.", field="url")
    return base


def authorization(api_key: str | None) -> dict[str, str]:
    """Return the header that carries an API key; InvalidRequest if no header can."""
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()):
        raise InvalidRequest("--api-key may have only printable ASCII characters.", field="api_key")
    return {"authorization": f"Bearer {api_key}"}


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # NaN, or a surrogate: Python reads bytes that are not UTF-8 as such
        raise InvalidRequest(f"The request cannot be sent as JSON in UTF-8: {error}.") from error


def _form(fields: dict[str, str], file: tuple[str, bytes]) -> dict[str, Any]:
    """Return httpx's arguments of a form; characters that UTF-8 lacks are replaced in the name of its file."""
    for name, value in fields.items():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"The field {name} cannot be sent in UTF-8: {error}.", field=name) from error
    file_name, content = file
    return {"data": fields, "files": {"file": (file_name.encode(errors="replace").decode(), content)}}


def unreachable(url: str, error: httpx.HTTPError) -> Unavailable:
    """Return the error for a URL at which no server answers, with a hint."""
    reason = str(error) or type(error).__name__
    return Unavailable(f"No server answers at {url} ({reason}). Start one with `tetrad serve`, or give its --url.")


def _error(status: int, text: str) -> TetradError:
    try:
        error = json.loads(text)["error"]
        message = error if isinstance(error, str) else str(error["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = text.strip().splitlines()[0] if text.strip() else f"HTTP status {status}"
    if status in (404, 501):
        return NotFound(message) if status == 404 else Unsupported(message)
    return Unavailable(message) if status >= 500 or status == 429 else InvalidRequest(message)


def trust_of(ca_file: Path | None, *, and_system: bool = False) -> ssl.SSLContext:
    """Return the trust in the authorities of a file, or of the system; InvalidRequest if the file cannot be used.

    Args:
        ca_file: the file. None: the system's authorities are trusted.
        and_system: trust the system's authorities beside those of the file.
    """
    try:
        trust = ssl.create_default_context(cafile=ca_file)
        if and_system and ca_file is not None:
            trust.load_default_certs()
        return trust
    except OSError as error:
        raise InvalidRequest(f"--ca-file {ca_file} cannot be used: {error.strerror or error}.", field="ca_file") from error
