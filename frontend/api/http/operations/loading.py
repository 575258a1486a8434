"""/v1/load_model and /v1/unload_model: operators load and unload further models while the frontend runs.

The names follow those of the endpoints for adapters. Loading connects services that run already.
"""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.middleware.access import require_operator
from tetrad.frontend.api.http.requests.body import read_body
from tetrad.frontend.further_models import FurtherModel
from tetrad.frontend.llm.model_loader import ModelLoader

router = APIRouter()

_OPERATORS = [Depends(require_operator)]
_ERRORS = (400, 401, 403, 404, 413, 415, 500, 503)


class UnloadModelRequest(BaseModel):
    """The body of /v1/unload_model."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(description="One of its names; not one of the first model's.")]


_LOAD = documented(
    FurtherModel,
    text="Success: model 'reader' loaded successfully.",
    tag="operate",
    errors=(*_ERRORS, 409),
)
_UNLOAD = documented(
    UnloadModelRequest,
    text="Success: model 'reader' unloaded successfully.",
    tag="operate",
    errors=_ERRORS,
)


@router.post("/v1/load_model", dependencies=_OPERATORS, **_LOAD)
async def load_model(request: Request) -> Response:
    """Connect the running services of a further model and serve it from then on, as if further_models had listed it."""
    body = await read_body(request, FurtherModel)
    await _loader_of(request).load(body)
    return PlainTextResponse(f"Success: model '{body.served_model_names[0]}' loaded successfully.")


@router.post("/v1/unload_model", dependencies=_OPERATORS, **_UNLOAD)
async def unload_model(request: Request) -> Response:
    """Stop serving a further model. Answers when its requests have ended, after drain_timeout_s at the latest."""
    body = await read_body(request, UnloadModelRequest)
    await _loader_of(request).unload(body.model)
    return PlainTextResponse(f"Success: model '{body.model}' unloaded successfully.")


def _loader_of(request: Request) -> ModelLoader:
    loader: ModelLoader = request.app.state.loader
    return loader
