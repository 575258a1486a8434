"""/v1/embeddings, /classify and /pooling: the routes with one result for each input."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.pooling.batch import Job, conversations_of, in_slices, prompts_of, shown, usage_of
from tetrad.frontend.api.http.pooling.bodies import ClassifyRequest, EmbeddingRequest, InputBody, PoolingRequest
from tetrad.frontend.api.http.pooling.objects import (
    Classification,
    Classifications,
    Embedding,
    Embeddings,
    Pooled,
    Poolings,
)
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.streams import until_disconnected
from tetrad.frontend.request.pooling import CLASSIFY, EMBED, PoolingParams, PoolingRequestOutput

router = APIRouter()

_USAGE = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
_HEAD = {"object": "list", "created": 1767225600, "model": "all-minilm-l6-v2"}
_EMBEDDINGS = {
    "id": "embd-9f2d",
    **_HEAD,
    "data": [{"object": "embedding", "index": 0, "embedding": [0.013, -0.021]}],
    "usage": _USAGE,
}
_CLASSES = {
    "id": "classify-9f2d",
    **_HEAD,
    "data": [{"index": 0, "label": "POSITIVE", "probs": [0.1, 0.9], "num_classes": 2}],
    "usage": _USAGE,
}
_POOLED = {
    "id": "pooling-9f2d",
    **_HEAD,
    "data": [{"object": "pooling", "index": 0, "data": [[0.013, -0.021]]}],
    "usage": _USAGE,
}


@router.post("/v1/embeddings", **documented(EmbeddingRequest, answer=Embeddings, example=_EMBEDDINGS, tag="pool"))
async def create_embeddings(request: Request) -> Response:
    """Return an embedding of each input."""
    body = await read_prompt_body(request, EmbeddingRequest)
    job = Job.of(request, body, "embd")
    job.facts(EMBED, "Embeddings")
    params = PoolingParams(task=EMBED, use_activation=body.use_activation, dimensions=body.dimensions)
    outputs = await until_disconnected(request.receive, _outputs(request, job, body, params))
    data = await in_slices(
        outputs, lambda index, output: Embedding("embedding", index, shown(output.outputs, body.encoding_format))
    )
    return JsonResponse(Embeddings(job.request_id, "list", job.created, job.model, data, usage_of(outputs)))


@router.post("/classify", **documented(ClassifyRequest, answer=Classifications, example=_CLASSES, tag="pool"))
async def classify(request: Request) -> Response:
    """Return the probability of each class for each input."""
    body = await read_prompt_body(request, ClassifyRequest)
    job = Job.of(request, body, "classify")
    labels = job.facts(CLASSIFY, "Classification").labels
    params = PoolingParams(task=CLASSIFY, use_activation=body.use_activation)
    outputs = await until_disconnected(request.receive, _outputs(request, job, body, params))
    data = await in_slices(outputs, lambda index, output: _classification(index, output, labels))
    return JsonResponse(Classifications(job.request_id, "list", job.created, job.model, data, usage_of(outputs)))


@router.post("/pooling", **documented(PoolingRequest, answer=Poolings, example=_POOLED, tag="pool"))
async def pool(request: Request) -> Response:
    """Return the pooled result of each input: a vector, or one for each token."""
    body = await read_prompt_body(request, PoolingRequest)
    job = Job.of(request, body, "pooling")
    params = PoolingParams(task=body.task, use_activation=body.use_activation)
    outputs = await until_disconnected(request.receive, _outputs(request, job, body, params))
    data = await in_slices(outputs, lambda index, output: Pooled("pooling", index, shown(output.outputs, body.encoding_format)))
    return JsonResponse(Poolings(job.request_id, "list", job.created, job.model, data, usage_of(outputs)))


async def _outputs(request: Request, job: Job, body: InputBody, params: PoolingParams) -> list[PoolingRequestOutput]:
    most = request.app.state.settings.max_pooling_inputs
    if body.input is None:
        field, prompts = "messages", await conversations_of(job.llm, body, most)
    else:
        field, prompts = "input", prompts_of(body.input, most)
    special, names = body.add_special_tokens is not False, {"prompt": field}
    return await job.run(prompts, [params] * len(prompts), add_special_tokens=special, names=names)


def _classification(index: int, output: PoolingRequestOutput, labels: tuple[str, ...]) -> Classification:
    probs = output.outputs.values.tolist()
    best = max(range(len(probs)), key=probs.__getitem__)
    return Classification(index, labels[best] if labels else None, probs, len(probs))
