"""/pause, /resume, /sleep, /wake_up, /reset_*_cache, /start_profile, /stop_profile: operators control a model's services.

The names are vLLM's. guard.py checks permissions. Reading the state (/is_paused, /is_sleeping) needs no operator key.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.documentation.schemas import constant, field, obj
from tetrad.frontend.api.http.middleware.access import require_operator
from tetrad.frontend.api.http.requests.named import models_of, named_llm
from tetrad.frontend.api.http.requests.query import query_alone
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.engine.admin_client import AdminState
from tetrad.frontend.llm.async_llm import AsyncLLM

router = APIRouter()

_OPERATORS = [Depends(require_operator), Depends(query_alone)]
_Model = Annotated[str, Query(description="Name of a model, where several are served. Empty: all of them.")]
_MOST_STEPS = 2**32 - 1
_PROFILE_ERRORS = (400, 401, 403, 500, 503)
_ERRORS = (*_PROFILE_ERRORS, 404)


_PAUSE = documented(answer=obj("*", status=constant("paused")), example={"status": "paused"}, tag="operate", errors=_ERRORS)
_RESUME = documented(
    answer=obj("*", status=constant("resumed")), example={"status": "resumed"}, tag="operate", errors=(*_ERRORS, 409)
)
_NOT_ANSWERING = field("array", "The engine cores that do not; absent if all do.", items={"type": "string"})
_IS_PAUSED = documented(
    answer=obj(
        "is_paused",
        is_paused=field("boolean", "Whether new requests wait, at any engine core that says so at once."),
        not_answering=_NOT_ANSWERING,
    ),
    example={"is_paused": False},
    tag="operate",
    errors=(401, 404, 500, 503),
)
_SLEEP = documented(
    answer=obj("*", is_sleeping=field("boolean", "True.")),
    example={"is_sleeping": True},
    tag="operate",
    errors=(*_ERRORS, 409),
)
_RELEASE = documented(
    answer=obj("*", status=constant("kv_cache_released")),
    example={"status": "kv_cache_released"},
    tag="operate",
    errors=(*_ERRORS, 409),
)
_WAKE_UP = documented(
    answer=obj("*", is_sleeping=field("boolean", "True: parts that the tags did not name sleep on.")),
    example={"is_sleeping": False},
    tag="operate",
    errors=_ERRORS,
)
_IS_SLEEPING = documented(
    answer=obj(
        "is_sleeping",
        is_sleeping=field(
            "boolean", "Whether any engine core sleeps that says so at once; one that is paused sleeps at level 0."
        ),
        not_answering=_NOT_ANSWERING,
    ),
    example={"is_sleeping": False},
    tag="operate",
    errors=(401, 404, 500, 503),
)
_RESET = documented(
    answer=obj("*", success=field("boolean", "False: requests hold blocks, and nothing was forgotten.")),
    example={"success": True},
    tag="operate",
    errors=_ERRORS,
)
_RESET_MEDIA = documented(
    answer=obj("*", success=field("boolean", "Always true.")), example={"success": True}, tag="operate", errors=_ERRORS
)


_START_PROFILE = documented(
    answer=obj("*", status=constant("recording")),
    example={"status": "recording"},
    tag="operate",
    errors=(*_PROFILE_ERRORS, 409),
)
_STOP_PROFILE = documented(
    answer=obj(
        "*",
        paths=field("array", "Paths of the files, each on its service's machine.", items={"type": "string"}),
    ),
    example={"paths": ["/tmp/profiles/profile-frontend-1.json", "/tmp/profiles/profile-engine-core-1.json"]},
    tag="operate",
    errors=(*_PROFILE_ERRORS, 404, 409),
)


@router.post("/pause", dependencies=_OPERATORS, **_PAUSE)
async def pause(
    request: Request,
    mode: Annotated[
        Literal["abort", "wait", "keep"],
        Query(description="What happens to requests: abort ends them, wait lets those that run finish, keep freezes them."),
    ] = "abort",
    clear_cache: Annotated[bool, Query(description="Forget cached prefixes too: kept requests are computed again.")] = True,
    model: _Model = "",
) -> Response:
    """Stop generating. Requests that arrive later wait until /resume. Answers when running requests that may finish have."""
    for llm in _chosen(request, model):
        await llm.engine_admin.pause(mode, clear_cache=clear_cache)
    return JsonResponse({"status": "paused"})


@router.post("/resume", dependencies=_OPERATORS, **_RESUME)
async def resume(request: Request, model: _Model = "") -> Response:
    """Continue generating after /pause."""
    for llm in _chosen(request, model):
        await llm.engine_admin.resume()
    return JsonResponse({"status": "resumed"})


@router.get("/is_paused", **_IS_PAUSED)
async def is_paused(request: Request, model: _Model = "") -> Response:
    """Return whether generation is paused on any engine core, and which engine cores do not report their state at once."""
    states = await _states(request, model)
    return JsonResponse({"is_paused": any(state.is_paused for _, state in states)} | _silence(states))


@router.post("/sleep", dependencies=_OPERATORS, **_SLEEP)
async def sleep(
    request: Request,
    level: Annotated[
        int, Query(ge=0, le=2, description="0 pauses alone. 1 drops the KV cache, weights stay in host memory. 2 drops both.")
    ] = 1,
    mode: Annotated[
        Literal["abort", "wait", "keep"],
        Query(description="What happens to requests, as at /pause; those that are kept are computed again after /wake_up."),
    ] = "keep",
    model: _Model = "",
) -> Response:
    """Free device memory and answer when that is done. At levels 1 and 2 requests that arrive later get a 503."""
    for llm in _chosen(request, model):
        await llm.engine_admin.sleep(level, mode)
    return JsonResponse({"is_sleeping": True})


@router.post("/release_kv_cache_memory", dependencies=_OPERATORS, **_RELEASE)
async def release_kv_cache_memory(request: Request, model: _Model = "") -> Response:
    """Free the memory of the KV cache alone, until /wake_up; unfinished requests are computed again, later ones get a 503."""
    for llm in _chosen(request, model):
        await llm.engine_admin.release_kv_cache_memory()
    return JsonResponse({"status": "kv_cache_released"})


@router.post("/wake_up", dependencies=_OPERATORS, **_WAKE_UP)
async def wake_up(
    request: Request,
    tags: Annotated[
        list[Literal["weights", "kv_cache"]] | None,
        Query(description="What to take back, weights first; given again for the other one. Unset: everything."),
    ] = None,
    model: _Model = "",
) -> Response:
    """Allocate the device memory again and answer when requests are computed again. Also ends a /pause."""
    for llm in _chosen(request, model):
        await llm.engine_admin.wake_up(tags or ())
    states = await _states(request, model)
    return JsonResponse({"is_sleeping": any(state.is_sleeping for _, state in states)})


@router.get("/is_sleeping", **_IS_SLEEPING)
async def is_sleeping(request: Request, model: _Model = "") -> Response:
    """Return whether any engine core sleeps, and which engine cores do not report their state at once."""
    states = await _states(request, model)
    return JsonResponse({"is_sleeping": any(state.is_sleeping for _, state in states)} | _silence(states))


@router.post("/reset_prefix_cache", dependencies=_OPERATORS, **_RESET)
async def reset_prefix_cache(
    request: Request,
    reset_running_requests: Annotated[
        bool, Query(description="Preempt what runs, so that it holds no blocks; it is computed again.")
    ] = False,
    model: _Model = "",
) -> Response:
    """Empty the prefix cache of every engine core."""
    succeeded = [
        await llm.engine_admin.reset_prefix_cache(reset_running_requests=reset_running_requests)
        for llm in _chosen(request, model)
    ]
    return JsonResponse({"success": all(succeeded)})


@router.post("/reset_mm_cache", dependencies=_OPERATORS, **_RESET_MEDIA)
async def reset_mm_cache(request: Request, model: _Model = "") -> Response:
    """Empty the cache of preprocessed media of every tokenizer. Items that have only a uuid must then be sent again."""
    for llm in _chosen(request, model):
        await llm.reset_mm_cache()
    return JsonResponse({"success": True})


@router.post("/reset_encoder_cache", dependencies=_OPERATORS, **_RESET_MEDIA)
async def reset_encoder_cache(request: Request, model: _Model = "") -> Response:
    """Empty the encoder cache of every engine core. Embeddings that running requests will read are forgotten afterwards."""
    for llm in _chosen(request, model):
        await llm.engine_admin.reset_encoder_cache()
    return JsonResponse({"success": True})


@router.post("/start_profile", dependencies=_OPERATORS, **_START_PROFILE)
async def start_profile(
    request: Request,
    prefix: Annotated[str, Query(max_length=64, description="First part of the files' names. Empty: `profile`.")] = "",
    delay_iterations: Annotated[int, Query(ge=0, le=_MOST_STEPS, description="Steps of a worker before it records.")] = 0,
    max_iterations: Annotated[int, Query(ge=0, le=_MOST_STEPS, description="Steps that a worker records. 0: all.")] = 0,
) -> Response:
    """Record the function calls of this frontend, the engine cores and their workers until /stop_profile."""
    await request.app.state.profiling.start(prefix, delay_iterations, max_iterations)
    return JsonResponse({"status": "recording"})


@router.post("/stop_profile", dependencies=_OPERATORS, **_STOP_PROFILE)
async def stop_profile(request: Request) -> Response:
    """Write the recordings: a file for each service, on its machine. Perfetto and chrome://tracing show such files."""
    return JsonResponse({"paths": await request.app.state.profiling.stop()})


def _chosen(request: Request, model: str) -> list[AsyncLLM]:
    """Return the model that an operator names; an empty name: all models."""
    return [named_llm(request, model)] if model else list(models_of(request))


async def _states(request: Request, model: str) -> list[tuple[str, AdminState]]:
    """Return the state of each chosen model, each with a prefix for its engine cores: its name if several are chosen."""
    chosen = _chosen(request, model)
    prefixes = [f"{llm.served_names[0]}: " for llm in chosen] if len(chosen) > 1 else [""]
    return [(prefix, await llm.engine_admin.state()) for prefix, llm in zip(prefixes, chosen, strict=True)]


def _silence(states: Iterable[tuple[str, AdminState]]) -> dict[str, list[str]]:
    """Return the engine cores that did not report their state; empty if all did."""
    silent = [f"{prefix}engine core {place}" for prefix, state in states for place in state.silent]
    return {"not_answering": silent} if silent else {}
