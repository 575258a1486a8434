"""Rendered request: makes a body of /inference/v1/generate from one prompt and its parameters."""

from typing import Protocol

from tetrad.frontend.api.http.scale_out.objects import RenderedRequest
from tetrad.frontend.api.http.scale_out.sampling_json import json_of
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.new_request import NewRequest
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams

RENDERED_EXAMPLE = {
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


class RenderedBody(Protocol):
    """The fields of a body that are copied to the rendered request."""

    @property
    def model(self) -> str | None:
        """The name of the model; None: the first model."""

    @property
    def priority(self) -> int:
        """The priority; a larger value is more urgent."""

    @property
    def cache_salt(self) -> str | None:
        """The salt, which separates prefix caches."""

    @property
    def stream(self) -> bool | None:
        """Whether the answer is streamed as server-sent events."""


async def rendered_request(
    llm: AsyncLLM,
    body: RenderedBody,
    prompt: PromptType,
    params: SamplingParams,
    request_id: str,
    *,
    add_special_tokens: bool = True,
    truncate_prompt_tokens: int | None = None,
    truncation_side: str = "left",
    reasoning_ended: bool | None = True,
) -> RenderedRequest:
    """Return the rendered request of a prompt. Errors: see AsyncLLM.render; NotFound for a model that is not served.

    Args:
        reasoning_ended: see RequestOptions; True: the constraint says itself where it starts, as those of chats do.
    """
    request = NewRequest(
        request_id=request_id,
        prompt=prompt,
        params=params,
        priority=body.priority,
        lora_request=llm.model_names.lora_of(llm.model_names.resolve(body.model)),
        add_special_tokens=add_special_tokens,
        truncate_prompt_tokens=truncate_prompt_tokens,
        truncation_side=truncation_side,
        cache_salt=body.cache_salt or "",
        reasoning_ended=reasoning_ended,
    )
    found = await llm.render(request)
    constraint = found.params.structured_outputs
    return RenderedRequest(
        request_id=request_id,
        token_ids=found.token_ids,
        sampling_params=json_of(found.params),
        model=body.model,
        reasoning_ended=True if constraint is not None and constraint.start_after_token_ids is None else None,
        stream=bool(body.stream),
        cache_salt=body.cache_salt,
        priority=body.priority,
    )
