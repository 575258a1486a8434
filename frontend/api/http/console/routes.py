"""Console routes: serves the page at /, its files, and its stream of events.

The page and its files need no key: they are the same on every server. They are read once at start; a name is never used as a
path, so unknown names are a 404. The events and the API need a key like all other routes; the page has a field for it.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.console.feed import Feed
from tetrad.frontend.api.http.middleware.access import CONSOLE_FILES, presented_keys
from tetrad.frontend.api.http.sse.streams import StreamForm, stream_response
from tetrad.frontend.api.http.static_files.static_file import TYPES, StaticFile
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.model_directory import ModelDirectory

_FORM = StreamForm(closing=b"")
_DIRECTORY = Path(__file__).parent / "static"
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; connect-src 'self'; "
    "base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Allows the page only its own scripts, calls of its own server, and the files that its user attaches (blob:).

It forbids inline scripts and styles, other hosts, frames around the page, and the conversion of text to HTML (trusted types).
"""


def add_console(app: FastAPI, models: ModelDirectory, guard: Guard, settings: FrontendSettings) -> None:
    """Add the console's routes to `app`."""
    assets = _load_assets()
    feed = Feed(models, guard, settings.metrics_prefix, settings.traces_url)

    async def page(request: Request) -> Response:
        return assets["index.html"].response(request)

    async def file(request: Request) -> Response:
        asset = assets.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        return asset.response(request)

    async def events(request: Request) -> Response:
        keys = list(presented_keys(request.scope))
        return stream_response(request, feed.follow(keys, request.headers.get("origin")), _FORM)

    app.add_route("/", page, include_in_schema=False)
    app.add_route(f"{CONSOLE_FILES}{{name:path}}", file, include_in_schema=False)
    app.add_route("/console/events", events, include_in_schema=False)


@functools.cache
def _load_assets() -> Mapping[str, StaticFile]:
    """Return all files of the page by path, including those of other projects (vendor/). They are read once a process."""
    paths = sorted(path for path in _DIRECTORY.rglob("*") if path.suffix in TYPES)
    return {
        path.relative_to(_DIRECTORY).as_posix(): StaticFile.of(path, content_security_policy=_CONTENT_SECURITY_POLICY)
        for path in paths
    }
