"""Given prompts: determines the prompt of outputs that a client sends, and how it was to be answered."""

import dataclasses

from tetrad.frontend.api.http.scale_out.bodies import RenderChatRequest
from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.chat.turns import needs_special_tokens, prepare_turn
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.new_request import NewRequest
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest


async def given_turn(
    llm: AsyncLLM,
    conversation: Conversation,
    params: SamplingParams,
    prompt_ids: list[int] | None,
    request: RenderChatRequest | None,
) -> tuple[TokensPrompt, SamplingParams]:
    """Return the prompt, whose text determines how the output is parsed, and the parameters with the turn's constraint.

    Args:
        llm: renders the conversation, or decodes the ids.
        conversation: the conversation of the request.
        params: the parameters of the request.
        prompt_ids: ids of the prompt, if the client sends them.
        request: the request, if the client sends it; None: the conversation is empty.

    Raises:
        InvalidRequest: neither the request nor the prompt is known, and the model reasons.
    """
    if request is not None:
        is_truncated = request.truncate_prompt_tokens is not None
        prompt, found = await prepare_turn(llm, conversation, params, llm.chat_formats, is_truncated=is_truncated)
        if prompt_ids is None and is_truncated:
            prompt_ids = await _kept_ids(llm, prompt, params, request)
        if prompt_ids is not None:
            prompt["prompt_token_ids"] = prompt_ids
        return prompt, found
    formats = llm.chat_formats
    if prompt_ids is None and formats.reasoning is not None:
        text = "chat_request or prompt_token_ids is required: this model reasons, and the prompt may have begun that."
        raise InvalidRequest(text, field="chat_request")
    try:
        text = await llm.texts.detokenize(prompt_ids or [], skip_special_tokens=False)
    except InvalidRequest as error:
        error.field = "prompt_token_ids"
        raise
    params = dataclasses.replace(params, skip_special_tokens=not needs_special_tokens(formats, conversation))
    return TokensPrompt(prompt=text, prompt_token_ids=prompt_ids or []), params


async def _kept_ids(llm: AsyncLLM, prompt: TokensPrompt, params: SamplingParams, request: RenderChatRequest) -> list[int]:
    """Return what the truncation of a request leaves of its prompt."""
    new = NewRequest(
        request_id="",
        prompt=prompt,
        params=params,
        lora_request=llm.model_names.lora_of(llm.model_names.resolve(request.model)),
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        truncation_side=request.truncation_side or "left",
    )
    return (await llm.render(new)).token_ids
