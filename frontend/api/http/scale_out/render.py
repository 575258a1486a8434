"""/v1/completions/render and /v1/chat/completions/render: requests as token ids, to be sent to /inference/v1/generate."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.chat.conversations import chat_params, conversation_of
from tetrad.frontend.api.http.completions.prompts import completion_params, prompts_of
from tetrad.frontend.api.http.documentation.routes import documented
from tetrad.frontend.api.http.documentation.schemas import struct_schema
from tetrad.frontend.api.http.requests.body import read_prompt_body
from tetrad.frontend.api.http.requests.headers import request_id_of
from tetrad.frontend.api.http.requests.models import llm_of
from tetrad.frontend.api.http.scale_out.bodies import RenderChatRequest, RenderCompletionRequest
from tetrad.frontend.api.http.scale_out.objects import RenderedRequest
from tetrad.frontend.api.http.scale_out.sampling_json import json_of
from tetrad.frontend.api.http.schemas.generation_fields import SamplingBody
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.chat.turns import prepare_turn
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams

router = APIRouter()

_RENDERED = {
    "request_id": "chatcmpl-9f2d",
    "token_ids": [1, 9690, 198, 2683],
    "token_offsets": None,
    "features": None,
    "content_parts": None,
    "sampling_params": {"temperature": 0.0, "max_tokens": 32},
    "model": None,
    "reasoning_ended": None,
    "reasoning_parser_kwargs": None,
    "return_token_ids": None,
    "output_mode": "tokens",
    "stream": False,
    "stream_options": None,
    "cache_salt": None,
    "priority": 0,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
}
_LIST = {"type": "array", "items": struct_schema(RenderedRequest), "description": "A request for each prompt, in their order."}
_OF_PROMPTS = documented(RenderCompletionRequest, answer=_LIST, example=[_RENDERED | {"request_id": "cmpl-9f2d"}], tag="tokens")
_OF_CHAT = documented(RenderChatRequest, answer=RenderedRequest, example=_RENDERED, tag="tokens")


@router.post("/v1/completions/render", **_OF_PROMPTS)
async def render_completion(request: Request) -> Response:
    """Return the prompts of a completion as token ids, each as a body of /inference/v1/generate."""
    body = await read_prompt_body(request, RenderCompletionRequest)
    job = _Rendering(llm_of(request, body.model), body, f"cmpl-{request_id_of(request, body.request_id)}")
    prompts = prompts_of(body, (), request.app.state.settings.max_completion_prompts)
    params = completion_params(body, job.llm.default_sampling_fields(), max_tokens=body.max_tokens)
    ids = [job.request_id if len(prompts) == 1 else f"{job.request_id}-{place}" for place in range(len(prompts))]
    # Together, so that the tokenizer gets the prompts of one request in one message.
    found = await all_of(
        job.render(prompt, params, each, add_special_tokens=body.add_special_tokens)
        for each, prompt in zip(ids, prompts, strict=True)
    )
    return JsonResponse(found)


@router.post("/v1/chat/completions/render", **_OF_CHAT)
async def render_chat_completion(request: Request) -> Response:
    """Return a conversation as token ids, as a body of /inference/v1/generate."""
    body = await read_prompt_body(request, RenderChatRequest)
    job = _Rendering(llm_of(request, body.model), body, f"chatcmpl-{request_id_of(request, body.request_id)}")
    conversation = conversation_of(body)
    params = chat_params(body, job.llm.default_sampling_fields(), conversation)
    prompt, params = await prepare_turn(job.llm, conversation, params, job.llm.chat_formats)
    return JsonResponse(await job.render(prompt, params, job.request_id))


class _Rendering:
    """One request to these endpoints."""

    def __init__(self, llm: AsyncLLM, body: SamplingBody, request_id: str) -> None:
        self.llm, self.request_id = llm, request_id
        self._body = body
        self._model = llm.model_names.resolve(body.model)

    async def render(
        self, prompt: PromptType, params: SamplingParams, request_id: str, *, add_special_tokens: bool = True
    ) -> RenderedRequest:
        """Return the request for one prompt."""
        body = self._body
        found = await self.llm.render(
            prompt,
            params,
            request_id,
            priority=body.priority,
            lora_request=self.llm.model_names.lora_of(self._model),
            add_special_tokens=add_special_tokens,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            truncation_side=body.truncation_side or "left",
            cache_salt=body.cache_salt or "",
        )
        constraint = params.structured_outputs
        options = body.stream_options if body.stream else None
        return RenderedRequest(
            request_id=request_id,
            token_ids=found.token_ids,
            sampling_params=json_of(found.params),
            model=body.model,
            reasoning_ended=True if constraint is not None and constraint.start_after_token_ids is None else None,
            return_token_ids=body.return_token_ids,
            stream=bool(body.stream),
            stream_options=None if options is None else options.model_dump(exclude_unset=True),
            cache_salt=body.cache_salt,
            priority=body.priority,
        )
