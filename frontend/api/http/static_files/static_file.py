"""StaticFile: serves one file of a web page, read once at start, with its headers."""

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
    # Browsers revalidate each file, mostly with a 304: after an upgrade no page mixes scripts of two versions.
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class StaticFile:
    """One file, with the headers of its responses."""

    content: bytes
    headers: Mapping[str, str]

    @classmethod
    def of(cls, path: Path, *, content_security_policy: str) -> "StaticFile":
        """Read the file at `path`, whose name has one of the suffixes in TYPES."""
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        own = {"content-security-policy": content_security_policy, "content-type": TYPES[path.suffix], "etag": etag}
        return cls(content, {**_HEADERS, **own})

    def response(self, request: Request) -> Response:
        """Return a response with the file, or 304 if the client has this version."""
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if self.headers["etag"] in known:
            return Response(status_code=304, headers={name: self.headers[name] for name in ("cache-control", "etag")})
        return Response(self.content, headers=dict(self.headers))
