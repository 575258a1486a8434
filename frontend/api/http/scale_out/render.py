"""/v1/completions/render and /v1/chat/completions/render: convert requests to token ids for /inference/v1/generate."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.chat.conversations import chat_params
from tetrad.frontend.api.http.chat.embeds import conversation_without_embeds
from tetrad.frontend.api.http.completions.bodies import completion_params, prompts_of
from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.documentation.schemas import struct_schema
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.requests.named import llm_of, request_id_of
from tetrad.frontend.api.http.scale_out.bodies import RenderChatRequest, RenderCompletionRequest
from tetrad.frontend.api.http.scale_out.objects import RenderedRequest
from tetrad.frontend.api.http.scale_out.rendered_request import RENDERED_EXAMPLE, rendered_request
from tetrad.frontend.api.http.schemas.generation_fields import SamplingBody
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.streams import until_disconnected
from tetrad.frontend.chat.turns import prepare_turn
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams

router = APIRouter()

_LIST = {"type": "array", "items": struct_schema(RenderedRequest), "description": "A request for each prompt, in their order."}
_OF_PROMPTS = documented(
    RenderCompletionRequest, answer=_LIST, example=[RENDERED_EXAMPLE | {"request_id": "cmpl-9f2d"}], tag="tokens"
)
_OF_CHAT = documented(RenderChatRequest, answer=RenderedRequest, example=RENDERED_EXAMPLE, tag="tokens")


@router.post("/v1/completions/render", **_OF_PROMPTS)
async def render_completion(request: Request) -> Response:
    """Return the prompts of a completion as token ids, each as a body of /inference/v1/generate."""
    body = await read_prompt_body(request, RenderCompletionRequest)
    llm, request_id = llm_of(request, body.model), f"cmpl-{request_id_of(request, body.request_id)}"
    prompts = prompts_of(body, (), request.app.state.settings.max_completion_prompts)
    params = completion_params(body, llm.default_sampling_fields(), max_tokens=body.max_tokens)
    ids = [request_id if len(prompts) == 1 else f"{request_id}-{place}" for place in range(len(prompts))]
    # Concurrently, so that the tokenizer receives the prompts of one request in one message.
    work = all_of(
        _rendered(llm, body, prompt, params, each, add_special_tokens=body.add_special_tokens, reasoning_ended=None)
        for each, prompt in zip(ids, prompts, strict=True)
    )
    return JsonResponse(await until_disconnected(request.receive, work))


@router.post("/v1/chat/completions/render", **_OF_CHAT)
async def render_chat_completion(request: Request) -> Response:
    """Return a conversation as token ids, as a body of /inference/v1/generate."""
    body = await read_prompt_body(request, RenderChatRequest)
    llm, request_id = llm_of(request, body.model), f"chatcmpl-{request_id_of(request, body.request_id)}"
    conversation = conversation_without_embeds(body)
    params = chat_params(body, llm.default_sampling_fields(), conversation)

    async def work() -> RenderedRequest:
        is_truncated = body.truncate_prompt_tokens is not None
        prompt, found = await prepare_turn(llm, conversation, params, llm.chat_formats, is_truncated=is_truncated)
        return await _rendered(llm, body, prompt, found, request_id)

    return JsonResponse(await until_disconnected(request.receive, work()))


async def _rendered(
    llm: AsyncLLM,
    body: SamplingBody,
    prompt: PromptType,
    params: SamplingParams,
    request_id: str,
    *,
    add_special_tokens: bool = True,
    reasoning_ended: bool | None = True,
) -> RenderedRequest:
    """Return the rendered request of one prompt of a body, with the options of its answer. See rendered_request."""
    found = await rendered_request(
        llm,
        body,
        prompt,
        params,
        request_id,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side or "left",
        add_special_tokens=add_special_tokens,
        reasoning_ended=reasoning_ended,
    )
    found.return_token_ids, found.kv_transfer_params = body.return_token_ids, body.kv_transfer_params
    if body.stream and body.stream_options is not None:
        found.stream_options = body.stream_options.model_dump(exclude_unset=True)
    return found
