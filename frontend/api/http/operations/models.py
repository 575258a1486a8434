"""/v1/models: the names of the served models and of their adapters."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.requests.named import llm_of, models_of
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.llm.async_llm import AsyncLLM

router = APIRouter()


class ModelCard(msgspec.Struct):
    """A name that requests may give as `model`."""

    id: Annotated[str, Meta(description="What to send as `model`.")]
    object: Annotated[str, Meta(description="Always model.")]
    created: Annotated[int, Meta(description="When this server began to serve it, in Unix seconds.")]
    owned_by: Annotated[str, Meta(description="Always tetrad.")]
    root: Annotated[str, Meta(description="What the name stands for: a path or a built-in name.")]
    parent: Annotated[str | None, Meta(description="Of a LoRA adapter: the model that it changes. Null: it is no adapter.")]
    max_model_len: Annotated[int, Meta(description="Longest prompt plus output, in tokens.")]
    input_modalities: Annotated[list[str], Meta(description="What prompts may have: text, and image if it reads images.")]


class ModelList(msgspec.Struct):
    """The list of all served names."""

    object: Annotated[str, Meta(description="Always list.")]
    data: Annotated[list[ModelCard], Meta(description="The first is the one that answers name.")]


_EXAMPLE = {
    "id": "smollm2-135m-instruct",
    "object": "model",
    "created": 1767225600,
    "owned_by": "tetrad",
    "root": "smollm2-135m-instruct",
    "parent": None,
    "max_model_len": 8192,
    "input_modalities": ["text"],
}
_LIST = documented(answer=ModelList, example={"object": "list", "data": [_EXAMPLE]}, tag="models")
_GET = documented(answer=ModelCard, example=_EXAMPLE, tag="models", errors=(401, 404, 500, 503))


@router.get("/v1/models", **_LIST)
async def list_models(request: Request) -> Response:
    """List the models and their adapters, by name."""
    cards = [_card(llm, name) for llm in models_of(request).started() for name in llm.all_names]
    return JsonResponse(ModelList("list", cards))


@router.get("/v1/models/{model:path}", **_GET)
async def get_model(request: Request, model: Annotated[str, Path(description="A name that /v1/models lists.")]) -> Response:
    """Return the model or the adapter with this name. Names may contain slashes."""
    llm = llm_of(request, model)
    return JsonResponse(_card(llm, llm.model_names.resolve(model)))


def _card(llm: AsyncLLM, name: str) -> ModelCard:
    names = llm.model_names
    lora = names.lora_of(name)
    root, parent = (names.root, None) if lora is None else (lora.lora_path, names.names[0])
    modalities = ["text", *llm.modalities]
    return ModelCard(name, "model", names.created_unix_s, "tetrad", root, parent, llm.max_model_len, modalities)
