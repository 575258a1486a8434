"""/v1/load_lora_adapter and /v1/unload_lora_adapter: operators load and unload LoRA adapters while the server runs.

These routes work only if `allow_runtime_lora_updating` is set. Names, bodies and answers are vLLM's; unlike in vLLM, unloading
frees the adapter in every engine core.
"""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.middleware.access import require_operator
from tetrad.frontend.api.http.requests.body import read_body
from tetrad.frontend.api.http.requests.named import models_of, named_llm
from tetrad.frontend.llm.adapter_names import adapter_of
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.errors import InvalidRequest, NotFound

router = APIRouter()

_OPERATORS = [Depends(require_operator)]
_ERRORS = (400, 401, 403, 404, 413, 415, 500, 503)


class LoadLoraRequest(BaseModel):
    """The body of /v1/load_lora_adapter."""

    model_config = ConfigDict(extra="forbid")

    lora_name: Annotated[str, Field(description="What clients send as `model`.")] = ""
    lora_path: Annotated[str, Field(description="Its directory, as the workers see it.")] = ""
    base_model_name: Annotated[str | None, Field(description="The model that it changes. Null: the first one.")] = None
    load_inplace: Annotated[
        bool, Field(description="Replace the adapter of this name; requests under way keep the one that they began with.")
    ] = False


class UnloadLoraRequest(BaseModel):
    """The body of /v1/unload_lora_adapter."""

    model_config = ConfigDict(extra="forbid")

    lora_name: Annotated[str, Field(description="Its name.")] = ""
    lora_int_id: Annotated[int | None, Field(description="Without effect: the name says which adapter is meant.")] = None


_LOAD = documented(
    LoadLoraRequest,
    text="Success: LoRA adapter 'sql' added successfully.",
    tag="operate",
    errors=(*_ERRORS, 409),
)
_UNLOAD = documented(
    UnloadLoraRequest,
    text="Success: LoRA adapter 'sql' removed successfully.",
    tag="operate",
    errors=(*_ERRORS, 409),
)


@router.post("/v1/load_lora_adapter", dependencies=_OPERATORS, **_LOAD)
async def load_lora_adapter(request: Request) -> Response:
    """Load an adapter into every engine core; from then on, requests can name it as `model`."""
    _check_allowed(request)
    body = await read_body(request, LoadLoraRequest)
    llm = named_llm(request, body.base_model_name)
    name, names = body.lora_name, llm.model_names
    if not name or not body.lora_path:
        raise InvalidRequest("Both 'lora_name' and 'lora_path' must be provided.")
    if any(name in other.model_names.names for other in models_of(request).started()):
        raise InvalidRequest(f"The lora adapter '{name}' conflicts with a served base model.", field="lora_name")
    async with llm.adapters.changing:
        known = names.adapters.get(name)
        owner = _model_with(request, name)
        if known is None and owner.model_names.adapters.get(name) is not None:
            text = f"The lora adapter '{name}' is one of the model {owner.model_names.names[0]}; unload it first."
            raise InvalidRequest(text, field="lora_name")
        if known is not None and not body.load_inplace:
            raise InvalidRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                field="lora_name",
            )
        lora = adapter_of(name, body.lora_path)
        if known is not None:
            lora = dataclasses.replace(lora, lora_int_id=known.lora_int_id, load_inplace=True)
        await llm.adapters.load(lora)
        names.adapters.add(dataclasses.replace(lora, load_inplace=False))
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post("/v1/unload_lora_adapter", dependencies=_OPERATORS, **_UNLOAD)
async def unload_lora_adapter(request: Request) -> Response:
    """Unload an adapter and free its memory in every engine core; refused while unfinished requests use it."""
    _check_allowed(request)
    body = await read_body(request, UnloadLoraRequest)
    name = body.lora_name
    if not name:
        raise InvalidRequest("'lora_name' needs to be provided to unload a LoRA adapter.", field="lora_name")
    llm = _model_with(request, name)
    adapters = llm.model_names.adapters
    async with llm.adapters.changing:
        known = adapters.get(name)
        if known is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", field="lora_name")
        await llm.adapters.unload(known.lora_int_id)
        adapters.remove(name)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


def _model_with(request: Request, adapter: str) -> AsyncLLM:
    """Return the model that has an adapter; the first model if none has it."""
    models = models_of(request)
    return next((llm for llm in models.started() if llm.model_names.adapters.get(adapter) is not None), models.first)


def _check_allowed(request: Request) -> None:
    if not request.app.state.settings.allow_runtime_lora_updating:
        raise NotFound("Not Found: adapters change at runtime only with --allow-runtime-lora-updating.")
