"""Contents: makes the content of a batch line's HTTP request: JSON, or a form with the recording that `file_url` names."""

import base64
import binascii
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tetrad.cli.batch_file.lines import RECORDING_URLS, BatchRequest
from tetrad.cli.http_client import httpx

_JSON = "application/json"
_FILE_URL = "file_url"
_MAX_FILE_BYTES = 64 << 20

Content = tuple[bytes, str]
"""The bytes of a request and their media type."""
Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the file at an http or https URL; raises BadContentError."""


class BadContentError(Exception):
    """The content of a line's request cannot be made; the text says why."""


async def content_of(request: BatchRequest, fetch: Fetch) -> Content:
    """Return the content of a request. Raises BadContentError if it has no recording, or one that cannot be read."""
    if request.url not in RECORDING_URLS:
        return json.dumps(request.body).encode(), _JSON
    fields = dict(request.body)
    url = fields.pop(_FILE_URL)
    data = _of_data_url(url) if url[:5].lower() == "data:" else await fetch(url)
    form = httpx.Request("POST", "http://form/", files={"file": ("recording", data)}, data=_texts(fields))
    return form.read(), form.headers["content-type"]


async def fetched(client: httpx.AsyncClient, url: str) -> bytes:
    """Return the file at a URL. Raises BadContentError if it cannot be fetched, or is larger than a server may take."""
    try:
        async with client.stream("GET", url, follow_redirects=True) as response:
            if response.status_code != 200:
                raise BadContentError(f"{_FILE_URL} was answered with status {response.status_code}.")
            data = bytearray()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > _MAX_FILE_BYTES:
                    raise BadContentError(f"{_FILE_URL} leads to more than {_MAX_FILE_BYTES} bytes.")
            return bytes(data)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise BadContentError(f"{_FILE_URL} cannot be fetched: {error or type(error).__name__}.") from error


def _of_data_url(url: str) -> bytes:
    head, _, text = url.partition(",")
    if not head.lower().endswith(";base64"):
        raise BadContentError(f"{_FILE_URL} must be data:TYPE;base64,DATA, or an http or https URL.")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise BadContentError(f"{_FILE_URL} has no valid base64: {error}.") from error


def _texts(fields: dict[str, Any]) -> dict[str, Any]:
    """Return JSON fields as those of a form: lists under names with brackets, objects as JSON, null left out."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list):
            found[f"{name}[]"] = [str(each) for each in value]
        elif isinstance(value, dict):
            found[name] = json.dumps(value)
        elif value is not None:
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
