"""Given prompts: determines the prompt of outputs that a client sends, and how it was to be answered."""

import dataclasses

from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.chat.turns import needs_special_tokens, prepare_turn
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest


async def given_turn(
    llm: AsyncLLM, conversation: Conversation, params: SamplingParams, prompt_ids: list[int] | None, *, is_rendered: bool
) -> tuple[TokensPrompt, SamplingParams]:
    """Return the prompt, whose text determines how the output is parsed, and the parameters with the turn's constraint.

    Args:
        llm: renders the conversation, or decodes the ids.
        conversation: the conversation of the request.
        params: the parameters of the request.
        prompt_ids: ids of the prompt, if the client sends them.
        is_rendered: whether the client sends the request; else the conversation is empty.

    Raises:
        InvalidRequest: neither the request nor the prompt is known, and the model reasons.
    """
    if is_rendered:
        return await prepare_turn(llm, conversation, params, llm.chat_formats)
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
