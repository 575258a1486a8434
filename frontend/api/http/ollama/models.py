"""/api/tags, /api/show, /api/ps and /api/version: facts about the served model, in Ollama's form."""

import hashlib

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.ollama import documentation as docs
from tetrad.frontend.api.http.ollama.bodies import ShowRequest
from tetrad.frontend.api.http.ollama.objects import (
    ModelDetails,
    ModelEntries,
    ModelEntry,
    RunningModel,
    RunningModels,
    ShownModel,
    VersionBody,
    timestamp,
)
from tetrad.frontend.api.http.ollama.route import OllamaRoute
from tetrad.frontend.api.http.requests.body import read_body
from tetrad.frontend.api.http.requests.named import llm_of, models_of
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.media.items import IMAGE
from tetrad.frontend.request.pooling import EMBED
from tetrad.services.errors import NotFound

router = APIRouter(route_class=OllamaRoute)

_LATEST = ":latest"
_VERSION_OF_OLLAMA = "0.14.2"
"""The version of Ollama whose API these routes follow. Clients refuse older ones: VS Code before 0.6.4, Codex before 0.13.4."""

_SHOW = documented(ShowRequest, answer=ShownModel, example=docs.SHOWN, tag="models", error_form=docs.ERRORS)
_VERSION = documented(answer=VersionBody, example={"version": _VERSION_OF_OLLAMA}, tag="monitor", error_form=docs.ERRORS)


def named_model(request: Request, name: str | None) -> tuple[AsyncLLM, str]:
    """Return a model and its name in answers. Ollama's clients may append `:latest` to it. NotFound for an unknown name."""
    try:
        return _found(request, name)
    except NotFound:
        if not (name or "").endswith(_LATEST):
            raise
        return _found(request, (name or "").removesuffix(_LATEST))


def _found(request: Request, name: str | None) -> tuple[AsyncLLM, str]:
    llm = llm_of(request, name)
    return llm, llm.model_names.resolve(name)


@router.get("/api/tags", **documented(answer=ModelEntries, example=docs.ENTRIES, tag="models", error_form=docs.ERRORS))
async def list_models(request: Request) -> Response:
    """List the models, in Ollama's form."""
    return JsonResponse(ModelEntries([_entry(llm, name) for llm in models_of(request).started() for name in llm.all_names]))


@router.get("/api/ps", **documented(answer=RunningModels, example=docs.RUNNING, tag="models", error_form=docs.ERRORS))
async def list_running(request: Request) -> Response:
    """List the loaded models, in Ollama's form: all of them."""
    running = [
        RunningModel(name, name, _digest(llm, name), _details(llm, name), llm.max_model_len)
        for llm in models_of(request).started()
        for name in llm.all_names
    ]
    return JsonResponse(RunningModels(running))


@router.post("/api/show", **_SHOW)
async def show(request: Request) -> Response:
    """Return facts about a model, in Ollama's form."""
    body = await read_body(request, ShowRequest, any_content_type=True)
    llm, name = named_model(request, body.model or body.name)
    info: dict[str, int | str] = {
        # Clients take it as the beginning of the names below.
        "general.architecture": "tetrad",
        "general.basename": llm.model_names.root,
        "tetrad.context_length": llm.max_model_len,
        "tetrad.vocab_size": llm.engine_info.vocab_size,
        "tetrad.device": llm.engine_info.device,
        "tetrad.kv_cache_tokens": llm.engine_info.kv_cache_tokens,
    }
    defaults = "\n".join(f"{field} {value}" for field, value in llm.default_sampling_fields().items())
    template = llm.tokenizer_info.chat_template
    began = timestamp(llm.model_names.created_unix_s)
    return JsonResponse(ShownModel(began, template, defaults, _details(llm, name), info, _capabilities(llm)))


@router.get("/api/version", **_VERSION)
async def version(_: Request) -> Response:
    """Return the version of Ollama whose API this server follows."""
    return JsonResponse(VersionBody(_VERSION_OF_OLLAMA))


def _entry(llm: AsyncLLM, name: str) -> ModelEntry:
    return ModelEntry(name, name, _digest(llm, name), timestamp(llm.model_names.created_unix_s), _details(llm, name))


def _digest(llm: AsyncLLM, name: str) -> str:
    """Return what stands for the digest of a model's files; Ollama's own client cuts it without a check of its length."""
    return hashlib.sha256(f"{llm.model_names.root}\n{name}".encode()).hexdigest()


def _details(llm: AsyncLLM, name: str) -> ModelDetails:
    parent = "" if llm.model_names.lora_of(name) is None else llm.model_names.names[0]
    return ModelDetails(parent, llm.engine_info.weights_dtype)


def _capabilities(llm: AsyncLLM) -> list[str]:
    embedding = ["embedding"] if llm.pooling is not None and EMBED in llm.pooling.tasks else []
    if not llm.generates or llm.transcribes:
        return embedding
    formats, can_chat = llm.chat_formats, llm.tokenizer_info.has_chat_template
    tools = ["tools"] if can_chat and formats.tools is not None else []
    vision = ["vision"] if IMAGE in llm.modalities else []
    thinking = ["thinking"] if formats.reasoning is not None else []
    return ["completion", *vision, *tools, *thinking, *embedding]
