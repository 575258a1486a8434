"""/health, /version, /metrics: for load balancers and operators."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.async_llm import AsyncLLM
from tetrad.frontend.http.responses import JsonResponse
from tetrad.services.version import VERSION

router = APIRouter()


@router.get("/health", response_model=None)
async def health(request: Request) -> Response:
    """Return 200 if requests can be served now, else 503 with the reason."""
    llm: AsyncLLM = request.app.state.llm
    await llm.check_health()
    return Response(status_code=200)


@router.get("/version", response_model=None)
async def version() -> Response:
    """Return the version of Tetrad."""
    return JsonResponse({"version": VERSION})


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    llm: AsyncLLM = request.app.state.llm
    return Response(llm.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})
