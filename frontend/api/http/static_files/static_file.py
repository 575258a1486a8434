"""StaticFile: a file of a web page, read once at start, with the headers that it is served with."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # Asked again each time, answered with 304: an upgrade must not meet scripts of the version before.
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class StaticFile:
    """One file."""

    content: bytes
    headers: Mapping[str, str]

    @classmethod
    def of(cls, path: Path, *, content_security_policy: str) -> "StaticFile":
        """Return the file at `path`; its name ends in one of TYPES."""
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        own = {"content-security-policy": content_security_policy, "content-type": TYPES[path.suffix], "etag": etag}
        return cls(content, {**_HEADERS, **own})

    def response(self, request: Request) -> Response:
        """Return the file, or that the client has it already."""
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if self.headers["etag"] in known:
            return Response(status_code=304, headers={name: self.headers[name] for name in ("cache-control", "etag")})
        return Response(self.content, headers=dict(self.headers))
