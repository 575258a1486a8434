"""/v2/embed: embeddings for Cohere's clients."""

from array import array
from collections.abc import Callable, Mapping, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.pooling.batch import Item, Job, base64_of, check_number, in_slices
from tetrad.frontend.api.http.pooling.bodies import PoolingBody
from tetrad.frontend.api.http.pooling.cohere_bodies import (
    CohereAnswer,
    CohereEmbeddings,
    CohereEmbedRequest,
    cohere_meta,
)
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.requests.named import llm_of
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.streams import until_disconnected
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.pooling import EMBED, PoolingParams, PoolingRequestOutput
from tetrad.services.errors import InvalidRequest

router = APIRouter()

_PROMPT_NAMES: Mapping[str, Sequence[str]] = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
"""Cohere's input type -> names of such prompts in models' files. A model without one embeds the inputs without a prefix."""

_ANSWER = {
    "id": "embd-9f2d",
    "embeddings": {"float": [[0.013, -0.021]]},
    "texts": ["Paris is the capital of France."],
    "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9}},
    "response_type": "embeddings_by_type",
}


@router.post("/v2/embed", **documented(CohereEmbedRequest, answer=CohereAnswer, example=_ANSWER, tag="pool"))
async def create_cohere_embeddings(request: Request) -> Response:
    """Return an embedding of each input, in the forms that Cohere's clients read."""
    body = await read_prompt_body(request, CohereEmbedRequest)
    texts, field = body.all_texts(), "inputs" if body.texts is None else "texts"
    check_number(len(texts), request.app.state.settings.max_pooling_inputs, field)
    job = Job.of(request, _pooling_body(request, body), "embd")
    job.facts(EMBED, "Embeddings")
    prefix = _prefix(body.input_type, job.llm.tokenizer_info.prompts)
    for place, text in enumerate(texts):
        if not text:  # the prefix would hide that it is empty
            raise InvalidRequest(f"Input {place}: The text cannot be empty.", field=field)
    params = PoolingParams(task=EMBED, dimensions=body.output_dimension)
    names = {"prompt": field, "dimensions": "output_dimension"}
    work = job.run([prefix + text for text in texts], [params] * len(texts), names=names)
    outputs = await until_disconnected(request.receive, work)
    embeddings = await _embeddings(body.embedding_types or ["float"], outputs)
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return JsonResponse(CohereAnswer(job.request_id, embeddings, texts, cohere_meta(num_tokens), "embeddings_by_type"))


def _pooling_body(request: Request, body: CohereEmbedRequest) -> PoolingBody:
    """Return the common fields of all pooling routes."""
    keep = None
    if body.truncate != "NONE":
        keep = -1 if body.max_tokens is None else min(body.max_tokens, _longest(llm_of(request, body.model)))
    side = "left" if body.truncate == "START" else "right"
    fields = {"model": body.model, "priority": body.priority, "truncate_prompt_tokens": keep, "truncation_side": side}
    return PoolingBody.model_validate(fields)


def _longest(llm: AsyncLLM) -> int:
    return llm.required_pooling(EMBED, "Embeddings API").longest_prompt(EMBED, llm.max_model_len)


def _prefix(input_type: str | None, prompts: Mapping[str, str]) -> str:
    """Return the prefix of each input; InvalidRequest for a type that neither Cohere nor the model has."""
    if input_type is None:
        return ""
    if input_type not in _PROMPT_NAMES and input_type not in prompts:
        known = sorted({*_PROMPT_NAMES, *prompts})
        raise InvalidRequest(f"input_type must be one of {', '.join(known)}, got {input_type!r}.", field="input_type")
    names = _PROMPT_NAMES.get(input_type, (input_type,))
    return next((prompts[name] for name in names if name in prompts), "")


async def _embeddings(types: Sequence[str], outputs: Sequence[PoolingRequestOutput]) -> CohereEmbeddings:
    width = len(outputs[0].outputs.values)
    if width % 8 and {"binary", "ubinary"} & {*types}:
        text = f"binary and ubinary need a dimension that is divisible by 8; the embeddings have {width}."
        raise InvalidRequest(text, field="embedding_types")

    async def encoded(name: str, form: Callable[["array[float]"], Item]) -> list[Item] | None:
        return await in_slices(outputs, lambda _, output: form(output.outputs.values)) if name in types else None

    return CohereEmbeddings(
        floats=await encoded("float", lambda values: values.tolist()),
        base64=await encoded("base64", base64_of),
        ubinary=await encoded("ubinary", _bits),
        binary=await encoded("binary", lambda values: [byte - 128 for byte in _bits(values)]),
    )


def _bits(values: "array[float]") -> list[int]:
    """Return one bit per value, eight in a byte, the first value in the highest bit."""
    text = "".join("1" if value >= 0 else "0" for value in values)
    return list(int(text, 2).to_bytes(len(text) // 8, "big"))
