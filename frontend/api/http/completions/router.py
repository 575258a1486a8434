"""/v1/completions: continues one or many prompts with n outputs each, streamed or whole."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.completions.answer import CompletionAnswer
from tetrad.frontend.api.http.completions.bodies import CompletionRequest, prompts_of
from tetrad.frontend.api.http.documentation.routes import documented, stream_of_chunks
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.requests.embeds import decode_embeds
from tetrad.frontend.api.http.requests.named import data_parallel_rank_of, llm_of, request_id_of
from tetrad.frontend.api.http.schemas.objects import Completion
from tetrad.frontend.api.http.sse.streams import stream_response, until_disconnected

router = APIRouter()

_EXAMPLE = {
    "id": "cmpl-9f2d",
    "object": "text_completion",
    "created": 1767225600,
    "model": "smollm2-135m-instruct",
    "choices": [{"index": 0, "text": " Paris.", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
}
_STREAM = stream_of_chunks(Completion)


@router.post("/v1/completions", **documented(CompletionRequest, answer=Completion, example=_EXAMPLE, events=_STREAM))
async def create_completion(request: Request) -> Response:
    """Continue texts. Several prompts are independent of each other; choice i * n + j is output j of prompt i."""
    body = await read_prompt_body(request, CompletionRequest)
    llm = llm_of(request, body.model)
    request_id, most = request_id_of(request, body.request_id), request.app.state.settings.max_completion_prompts
    enabled, echoes = request.app.state.settings.enable_prompt_embeds, bool(body.echo)
    embeds = await decode_embeds(body.prompt_embeds, enabled=enabled, echoes=echoes, most=most)
    job = CompletionAnswer(llm, body, request_id, prompts_of(body, embeds, most), data_parallel_rank_of(request))
    if body.stream:
        return stream_response(request, job.stream())
    return await until_disconnected(request.receive, job.answer())
