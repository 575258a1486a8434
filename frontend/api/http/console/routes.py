"""Console routes: serves the page at /, its files, and its stream of events.

The page and its files need no key: they are the same on every server. The events and the API need a key like all other routes;
the page has a field for it.
"""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.console.assets import load_assets
from tetrad.frontend.api.http.console.feed import Feed
from tetrad.frontend.api.http.middleware.access import CONSOLE_FILES, presented_keys
from tetrad.frontend.api.http.sse.streams import StreamForm, stream_response
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.model_directory import ModelDirectory

_FORM = StreamForm(closing=b"")


def add_console(app: FastAPI, models: ModelDirectory, guard: Guard, settings: FrontendSettings) -> None:
    """Add the console's routes to `app`."""
    assets = load_assets()
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
