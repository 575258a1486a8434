"""Assets: the files of the page, read once. A name never becomes a path: unknown names are a 404.

The policy that goes with them lets the page run its own scripts and call its own server, and nothing else: no inline script or
style, no other host, no frame around it, and no text that becomes markup (trusted types).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_DIRECTORY = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    # Asked again each time, answered with 304: an upgrade must not meet scripts of the version before.
    "cache-control": "no-cache",
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class Asset:
    """One file."""

    content: bytes
    headers: Mapping[str, str]

    @classmethod
    def of(cls, path: Path) -> "Asset":
        """Return the file at `path`."""
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, {**_HEADERS, "content-type": _TYPES[path.suffix], "etag": etag})

    def response(self, request: Request) -> Response:
        """Return the file, or that the client has it already."""
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if self.headers["etag"] in known:
            return Response(status_code=304, headers={name: self.headers[name] for name in ("cache-control", "etag")})
        return Response(self.content, headers=dict(self.headers))


def load_assets() -> dict[str, Asset]:
    """Return every file of the page, by its name."""
    return {path.name: Asset.of(path) for path in sorted(_DIRECTORY.iterdir()) if path.suffix in _TYPES}
