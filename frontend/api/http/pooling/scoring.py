"""/score and /rerank: the routes that score pairs of texts and sort documents by relevance.

frontend/llm/scoring.py computes the scores. Rerank answers have the form that Jina's and Cohere's clients read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.pooling.batch import Job, usage_of
from tetrad.frontend.api.http.pooling.bodies import PairBody, RerankRequest, ScoreRequest
from tetrad.frontend.api.http.pooling.cohere_bodies import cohere_meta
from tetrad.frontend.api.http.pooling.objects import Ranked, RankedText, Ranking, ScoreAnswer, ScoreItem, VoyageRanked
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.streams import until_disconnected
from tetrad.frontend.llm.scoring import PairLimits, Scores, pairs_of, score_pairs
from tetrad.frontend.tokenizer.client import PairTemplate
from tetrad.services.errors import InvalidRequest

router = APIRouter()

_USAGE = {"prompt_tokens": 30, "completion_tokens": 0, "total_tokens": 30}
_SCORES = {
    "id": "score-9f2d",
    "object": "list",
    "created": 1767225600,
    "model": "bge-reranker-base",
    "data": [{"index": 0, "object": "score", "score": 0.98}],
    "usage": _USAGE,
}
_RANKING = {
    "id": "rerank-9f2d",
    "model": "bge-reranker-base",
    "usage": _USAGE,
    "results": [{"index": 1, "relevance_score": 0.9, "document": {"text": "Paris is the capital of France."}}],
    "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 30}},
}
_SCORE_ROUTE = documented(ScoreRequest, answer=ScoreAnswer, example=_SCORES, tag="pool")
_RERANK_ROUTE = documented(RerankRequest, answer=Ranking, example=_RANKING, tag="pool")


@router.post("/v1/score", **_SCORE_ROUTE)
@router.post("/score", **_SCORE_ROUTE)
async def score(request: Request) -> Response:
    """Return a score for each pair: one text against many, or each against its own."""
    body = await read_prompt_body(request, ScoreRequest)
    job = Job.of(request, body, "score")
    names = {"text_1": _name_of(body, body.text_1, "data_1", "queries") or "text_1"}
    names["text_2"] = _name_of(body, body.text_2, "data_2", "documents", "items") or "text_2"
    pairs = _pairs(request, _as_list(body.text_1), _as_list(body.text_2), names)
    found = await until_disconnected(request.receive, _score(job, body, pairs, names))
    data = [ScoreItem(index, "score", each) for index, each in enumerate(found.values)]
    return JsonResponse(ScoreAnswer(job.request_id, "list", job.created, job.model, data, usage_of(found.outputs)))


@router.post("/v2/rerank", **_RERANK_ROUTE)
@router.post("/v1/rerank", **_RERANK_ROUTE)
@router.post("/rerank", **_RERANK_ROUTE)
async def rerank(request: Request) -> Response:
    """Return the documents by their relevance to a query, the most relevant first."""
    body = await read_prompt_body(request, RerankRequest)
    job = Job.of(request, body, "rerank")
    documents = body.texts()
    names = {"text_1": "query", "text_2": "documents"}
    pairs = _pairs(request, [body.query], documents, names)
    found = await until_disconnected(request.receive, _score(job, body, pairs, names))
    places = sorted(range(len(documents)), key=lambda place: -found.values[place])[: body.top_n or len(documents)]
    results = [
        Ranked(place, found.values[place], RankedText(documents[place]) if body.return_documents else None) for place in places
    ]
    usage = usage_of(found.outputs)
    voyages = [_voyages(each) for each in results] if body.is_voyages else None
    return JsonResponse(Ranking(job.request_id, job.model, usage, results, cohere_meta(usage.total_tokens), voyages))


def _voyages(ranked: Ranked) -> VoyageRanked:
    return VoyageRanked(ranked.index, ranked.relevance_score, None if ranked.document is None else ranked.document.text)


async def _score(job: Job, body: PairBody, pairs: Sequence[tuple[str, str]], names: Mapping[str, str]) -> Scores:
    """Return the scores of pairs; `names` are the names of the body's texts, by those of `score_pairs`, for errors."""
    limits = PairLimits(
        body.truncate_prompt_tokens,
        body.max_tokens_per_query or None,
        body.max_tokens_per_doc or None,
        body.truncation_side,
    )
    with _named(names):
        return await score_pairs(job.llm, pairs, job.run, limits, use_activation=body.use_activation, template=_template(body))


def _name_of(body: ScoreRequest, texts: object, *names: str) -> str | None:
    """Return the name of the field that the texts were taken from; None: it is none of these."""
    return next((name for name in names if getattr(body, name) is not None and getattr(body, name) == texts), None)


def _template(body: PairBody) -> PairTemplate:
    named = {} if body.instruction is None else {"instruction": body.instruction}
    return PairTemplate(body.chat_template, (body.chat_template_kwargs or {}) | named)


def _as_list(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else given or []


def _pairs(request: Request, first: list[str], second: list[str], names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the pairs of a body's texts; InvalidRequest if they are too many, or their numbers do not match."""
    most, name = request.app.state.settings.max_pooling_inputs, names["text_2"]
    if len(second) > most:
        raise InvalidRequest(f"{name} may hold at most {most} texts, got {len(second)}.", field=name)
    with _named(names):
        return pairs_of(first, second)


@contextmanager
def _named(names: Mapping[str, str]) -> Iterator[None]:
    """Replace the field of an error, while the context is open, by its name in the body."""
    try:
        yield
    except InvalidRequest as error:
        error.field = names.get(error.field or "", error.field)
        raise
