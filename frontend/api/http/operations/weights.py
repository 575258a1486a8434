"""/update_weights_from_disk, and vLLM's calls of an update: operators replace the weights of a served model.

The names are SGLang's and vLLM's; the only backend is "disk", a directory that every worker can read. Reading the version
(/weight_info) needs no operator key.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.documentation.schemas import constant, field, obj
from tetrad.frontend.api.http.middleware.access import require_operator
from tetrad.frontend.api.http.requests.body import read_body
from tetrad.frontend.api.http.requests.named import llm_of
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.engine.admin_client import mode_of
from tetrad.frontend.engine.weights_client import WeightsClient
from tetrad.services.errors import InvalidRequest

router = APIRouter()

_OPERATORS = [Depends(require_operator)]
_ERRORS = (400, 401, 403, 404, 409, 413, 415, 500, 503)
_Model = Annotated[str, Query(description="Name of a model, where several are served. Empty: the first.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class UpdateFromDiskRequest(_Body):
    """The body of /update_weights_from_disk."""

    model_path: Annotated[
        str,
        Field(description="A directory with weights of the same shapes, or a .gguf file, as the workers see it."),
    ] = ""
    weight_version: Annotated[str | None, Field(description="Name of the weights. Null: that of the weights before.")] = None
    abort_all_requests: Annotated[
        bool, Field(description="End unfinished requests, which are else computed again with the new weights.")
    ] = False
    load_format: Annotated[Literal["auto", "safetensors"] | None, Field(description="Of no effect: the files tell.")] = None
    flush_cache: Annotated[
        Literal[True], Field(description="Cached prefixes are always forgotten: the weights before computed them.")
    ] = True


class InitTransferRequest(_Body):
    """The body of /init_weight_transfer_engine."""

    init_info: Annotated[dict[str, Any], Field(description='{"backend": "disk"}, or empty.')]


class UpdateWeightsRequest(_Body):
    """The body of /update_weights."""

    update_info: Annotated[dict[str, Any], Field(description='{"path": ...}, as model_path of /update_weights_from_disk.')]


class FinishUpdateRequest(_Body):
    """The body of /finish_weight_update."""

    weight_version: Annotated[str | None, Field(description="Name of the weights. Null: that of the weights before.")] = None


class RenameWeightsRequest(_Body):
    """The body of /update_weight_version."""

    new_version: Annotated[str, Field(description="The new name.")]


def _message(text: str) -> dict[str, Any]:
    return {"answer": obj("*", message=constant(text)), "example": {"message": text}, "tag": "operate", "errors": _ERRORS}


_INITIALIZED, _STARTED = "Weight transfer initialized", "Weight update started"
_CHECKED, _FINISHED = "Weights checked", "Weight update finished"
_UPDATED = "The weights are updated."
_FROM_DISK = documented(
    UpdateFromDiskRequest,
    answer=obj(
        "*",
        success=field("boolean", "True."),
        message=constant(_UPDATED),
        weight_version=field("string", "Name of the weights."),
    ),
    example={"success": True, "message": _UPDATED, "weight_version": "step-100"},
    tag="operate",
    errors=_ERRORS,
)
_RENAME = documented(
    RenameWeightsRequest,
    answer=obj("*", success=field("boolean", "True."), new_version=field("string", "Name of the weights.")),
    example={"success": True, "new_version": "step-100"},
    tag="operate",
    errors=_ERRORS,
)
_ENGINE = obj(
    "*",
    weight_version=field("string", 'Name of its weights; "default": they have none.'),
    weights_path=field("string", "Where those of the last update are. Empty: they are the model's own."),
)
_INFO = documented(
    answer=obj(
        "*",
        weight_version=field(["string", "null"], "Name of the weights of all engine cores. Null: they differ."),
        engines=field("array", "The weights of each engine core.", items=_ENGINE),
    ),
    example={"weight_version": "step-100", "engines": [{"weight_version": "step-100", "weights_path": "/checkpoints/100"}]},
    tag="operate",
    errors=(401, 404, 500, 503),
)


@router.post("/update_weights_from_disk", dependencies=_OPERATORS, **_FROM_DISK)
async def update_weights_from_disk(request: Request, model: _Model = "") -> Response:
    """Replace the weights by those of another checkpoint of the same architecture and shapes, between two steps.

    Answers when requests are computed with the new weights. After an error the weights before serve.
    """
    body = await read_body(request, UpdateFromDiskRequest)
    if not body.model_path:
        raise InvalidRequest("'model_path' needs to be provided to update the weights.", field="model_path")
    mode = mode_of("abort" if body.abort_all_requests else "keep")
    version = await _weights(request, model).update(body.model_path, body.weight_version, mode)
    return JsonResponse({"success": True, "message": _UPDATED, "weight_version": version})


@router.post(
    "/init_weight_transfer_engine", dependencies=_OPERATORS, **documented(InitTransferRequest, **_message(_INITIALIZED))
)
async def init_weight_transfer_engine(request: Request, model: _Model = "") -> Response:
    """Choose how weights reach the workers: the backend "disk" alone. Optional."""
    body = await read_body(request, InitTransferRequest)
    await _weights(request, model).init(body.init_info)
    return JsonResponse({"message": _INITIALIZED})


@router.post("/start_weight_update", dependencies=_OPERATORS, **documented(**_message(_STARTED)))
async def start_weight_update(request: Request, model: _Model = "") -> Response:
    """Begin an update; one that was begun and not finished is dropped."""
    await _weights(request, model).start()
    return JsonResponse({"message": _STARTED})


@router.post("/update_weights", dependencies=_OPERATORS, **documented(UpdateWeightsRequest, **_message(_CHECKED)))
async def update_weights(request: Request, model: _Model = "") -> Response:
    """Name the new weights, which every worker checks; /finish_weight_update applies them."""
    body = await read_body(request, UpdateWeightsRequest)
    await _weights(request, model).check(body.update_info)
    return JsonResponse({"message": _CHECKED})


@router.post("/finish_weight_update", dependencies=_OPERATORS, **documented(FinishUpdateRequest, **_message(_FINISHED)))
async def finish_weight_update(request: Request, model: _Model = "") -> Response:
    """Apply the weights that /update_weights has named, between two steps; unfinished requests are computed again."""
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    body = await read_body(request, FinishUpdateRequest) if has_body else FinishUpdateRequest()
    await _weights(request, model).finish(body.weight_version)
    return JsonResponse({"message": _FINISHED})


@router.post("/update_weight_version", dependencies=_OPERATORS, **_RENAME)
async def update_weight_version(request: Request, model: _Model = "") -> Response:
    """Give the present weights another name."""
    body = await read_body(request, RenameWeightsRequest)
    await _weights(request, model).name(body.new_version)
    return JsonResponse({"success": True, "new_version": body.new_version})


@router.get("/weight_info", **_INFO)
async def weight_info(request: Request, model: _Model = "") -> Response:
    """Return which weights serve."""
    engines = await _weights(request, model).present()
    versions = {each.version for each in engines}
    return JsonResponse(
        {
            "weight_version": engines[0].version if len(versions) == 1 else None,
            "engines": [{"weight_version": each.version, "weights_path": each.path} for each in engines],
        }
    )


def _weights(request: Request, model: str) -> WeightsClient:
    return llm_of(request, model or None).engine_admin.weights
