"""/v1/models: the names clients may ask for."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.async_llm import AsyncLLM
from tetrad.frontend.http.responses import JsonResponse

router = APIRouter()


@router.get("/v1/models", response_model=None)
async def list_models(request: Request) -> Response:
    """List the models."""
    llm: AsyncLLM = request.app.state.llm
    return JsonResponse({"object": "list", "data": [_card(llm, name) for name in llm.model_names.names]})


@router.get("/v1/models/{name:path}", response_model=None)
async def get_model(request: Request, name: str) -> Response:
    """Return one model."""
    llm: AsyncLLM = request.app.state.llm
    return JsonResponse(_card(llm, llm.model_names.resolve(name)))


def _card(llm: AsyncLLM, name: str) -> dict[str, Any]:
    names = llm.model_names
    return {
        "id": name,
        "object": "model",
        "created": names.created_unix_s,
        "owned_by": "tetrad",
        "root": names.root,
        "parent": None,
        "max_model_len": llm.max_model_len,
    }
