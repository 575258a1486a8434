"""The HTTP application: routes, error handlers and request ids put together. Stateless but for the AsyncLLM it is given."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tetrad.frontend.async_llm import AsyncLLM
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.http import chat, completions, models, operations, tokens
from tetrad.frontend.http.errors import on_bug, on_router_error, on_tetrad_error
from tetrad.frontend.http.request_ids import RequestIds
from tetrad.services.errors import TetradError
from tetrad.services.version import VERSION


def create_app(llm: AsyncLLM, settings: FrontendSettings) -> ASGIApp:
    """Return the ASGI application that serves `llm`."""
    app = FastAPI(title="Tetrad", version=VERSION, redirect_slashes=False)
    app.state.llm = llm
    app.state.settings = settings
    for module in (completions, chat, models, tokens, operations):
        app.include_router(module.router)
    app.add_exception_handler(TetradError, on_tetrad_error)
    app.add_exception_handler(HTTPException, on_router_error)
    app.add_exception_handler(ClientDisconnect, _on_client_left)
    app.add_exception_handler(Exception, on_bug)
    # Outside of everything, so that even the answer to a bug carries its id.
    return RequestIds(app)


async def _on_client_left(_: Request, __: Exception) -> Response:
    """Return what nobody will read; 499 shows in proxies' logs."""
    return Response(status_code=499)
