"""The HTTP application: assembles routes, middleware and error handlers. Its only state is the models and the stored
responses of /v1/responses.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.audio import router as audio
from tetrad.frontend.api.http.chat import router as chat
from tetrad.frontend.api.http.completions import router as completions
from tetrad.frontend.api.http.console.routes import add_console
from tetrad.frontend.api.http.docs_page.page import add_documentation
from tetrad.frontend.api.http.documentation.routes import TAGS
from tetrad.frontend.api.http.messages import router as messages
from tetrad.frontend.api.http.middleware.access import Access
from tetrad.frontend.api.http.middleware.fast_path import FastPath
from tetrad.frontend.api.http.middleware.methods import Methods
from tetrad.frontend.api.http.middleware.metrics import HttpMetrics
from tetrad.frontend.api.http.middleware.refusals import on_unknown_path
from tetrad.frontend.api.http.middleware.request_ids import RequestIds
from tetrad.frontend.api.http.middleware.request_timeouts import RequestTimeouts
from tetrad.frontend.api.http.ollama import models as ollama_models
from tetrad.frontend.api.http.ollama import router as ollama
from tetrad.frontend.api.http.operations import loading, loras, monitoring, operator, weights
from tetrad.frontend.api.http.operations import models as model_lists
from tetrad.frontend.api.http.pooling import cohere, scoring
from tetrad.frontend.api.http.pooling import router as pooling
from tetrad.frontend.api.http.requests.body import BodyBudget
from tetrad.frontend.api.http.responses import router as responses
from tetrad.frontend.api.http.responses.service import ResponsesService
from tetrad.frontend.api.http.scale_out import derender, generate, render, render_message, render_response
from tetrad.frontend.api.http.schemas.errors import on_bug, on_router_error, on_tetrad_error, on_wrong_parameter
from tetrad.frontend.api.http.tokens import router as tokens
from tetrad.frontend.api.http.trace_points import trace_points
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.llm.model_loader import ModelLoader
from tetrad.frontend.llm.profiling import Profiling
from tetrad.services.errors import TetradError
from tetrad.services.observability.profiling import StepProfiler, profile_directory
from tetrad.services.request_context import REQUEST_ID
from tetrad.services.version import VERSION

_MODULES = (
    *(completions, chat, responses, messages, ollama, audio, pooling, cohere, scoring),
    *(
        render,
        render_message,
        render_response,
        generate,
        derender,
        model_lists,
        ollama_models,
        tokens,
        monitoring,
        operator,
        weights,
        loras,
        loading,
    ),
)
_DESCRIPTION = (
    "OpenAI's API, Anthropic's messages, Ollama's API and vLLM's additions to them. Where a server has API keys, requests"
    " carry one as `Authorization: Bearer KEY` or `x-api-key: KEY`; /health, /ping, /version, /metrics and these pages"
    " need none.\n\n"
    "Every response carries X-Request-Id: the one that was sent, or a new one; it is in the server's logs. Every error is"
    " an object {error: {message, type, param, code}}, under /v1/messages in Anthropic's form, under /api"
    " in Ollama's. Unknown fields are ignored."
)


class _Api(FastAPI):
    """FastAPI with an OpenAPI document that also describes authentication."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        fresh = self.openapi_schema is None
        document = super().openapi()
        if fresh:
            schemes = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
            document["components"] = {"securitySchemes": schemes}
            # FastAPI documents 422 for invalid parameters; here they cause a 400, like invalid fields of a body.
            for methods in document["paths"].values():
                for operation in methods.values():
                    operation["responses"].pop("422", None)
            self._restore_answers(document)
            # The empty entry is for servers without keys.
            document["security"] = [{"bearer": []}, {"x-api-key": []}, {}]
        return document

    def _restore_answers(self, document: dict[str, Any]) -> None:
        """Replace the answers by those of the routes: FastAPI omits null values, but examples contain nulls."""
        for route in (route for module in _MODULES for route in module.router.routes):
            if isinstance(route, APIRoute):
                for method in route.methods or ():
                    responses = document["paths"][route.path_format][method.lower()]["responses"]
                    for status, answer in route.responses.items():
                        responses[str(status)]["content"] = answer["content"]


def create_app(models: ModelDirectory, settings: FrontendSettings, guard: Guard) -> ASGIApp:
    """Return the ASGI application that serves `models` to the callers that `guard` admits."""
    app = _Api(
        title="Tetrad",
        version=VERSION,
        description=_DESCRIPTION,
        openapi_tags=TAGS,
        docs_url=None,  # FastAPI's own pages load their scripts from another host
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    add_documentation(app)
    app.state.models = models
    app.state.loader = ModelLoader(models)
    app.state.settings = settings
    app.state.guard = guard
    app.state.bodies = BodyBudget(settings.max_total_body_bytes)
    app.state.profiling = Profiling(
        StepProfiler("frontend", profile_directory(settings.profile_dir), trace_points),
        lambda: [llm.engine_admin for llm in models],
    )
    app.state.responses = ResponsesService.of(settings)
    for module in _MODULES:
        app.include_router(module.router)
    if settings.console:
        add_console(app, models, guard, settings)
    app.add_exception_handler(TetradError, on_tetrad_error)
    app.add_exception_handler(HTTPException, on_router_error)
    app.add_exception_handler(404, on_unknown_path)
    app.add_exception_handler(RequestValidationError, on_wrong_parameter)
    app.add_exception_handler(ClientDisconnect, _on_client_left)
    app.add_exception_handler(Exception, on_bug)
    fast = FastPath(app, (route for module in _MODULES for route in module.router.routes))
    # The outermost middleware, so that even the answer after a bug has its request id.
    limited = RequestTimeouts(fast, settings.request_timeout_s)
    paths = [route.path for route in app.routes if isinstance(route, Route)]
    measured = HttpMetrics(Methods(_with_cors(Access(limited, guard), settings)), paths, models.first.metrics.observe_http)
    return RequestIds(measured, models.tracer)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await app.state.responses.close()


def _with_cors(app: ASGIApp, settings: FrontendSettings) -> ASGIApp:
    """Return `app` with CORS for the allowed origins; it runs before the key check: browsers' preflights have no key."""
    if not settings.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=settings.allowed_origins,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
        expose_headers=[REQUEST_ID],
    )


async def _on_client_left(_: Request, __: Exception) -> Response:
    """Return status 499 for a client that has disconnected; it appears only in logs of proxies."""
    return Response(status_code=499)
