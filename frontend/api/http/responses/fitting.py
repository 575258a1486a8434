"""Fitting: drops the oldest turns of a conversation that exceeds the model's context, for `truncation: auto`."""

import dataclasses

from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.chat.turns import render_conversation
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.errors import PromptTooLong

_LASTING_ROLES = ("system", "developer")


async def fitted(llm: AsyncLLM, conversation: Conversation, *, max_output_tokens: int | None) -> Conversation:
    """Return the conversation with as many of its latest turns as leave room for the output. The last turn is always kept.

    Instructions at the start are kept, too. Whole turns are dropped, so that no tool output loses its call. If not even the
    last turn leaves room for `max_output_tokens`, the output is limited to the context: it then gets what remains.
    """
    room = llm.max_model_len - (max_output_tokens or 1)
    if await _fits(llm, conversation, room):
        return conversation
    first = next((place for place, each in enumerate(conversation.messages) if each["role"] not in _LASTING_ROLES), 0)
    starts = [place for place, each in enumerate(conversation.messages) if each["role"] == "user"]
    # Each candidate drops more turns than the previous one.
    candidates = [place for place in starts if place > first] or [first]
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        if await _fits(llm, _without(conversation, first, candidates[middle]), room):
            high = middle
        else:
            low = middle + 1
    kept = _without(conversation, first, candidates[low])
    is_shortest = low == len(candidates) - 1
    if is_shortest and max_output_tokens is not None and not await _fits(llm, kept, room):
        return await fitted(llm, conversation, max_output_tokens=None)
    return kept


def _without(conversation: Conversation, start: int, end: int) -> Conversation:
    messages = conversation.messages
    return dataclasses.replace(conversation, messages=[*messages[:start], *messages[end:]])


async def _fits(llm: AsyncLLM, conversation: Conversation, room: int) -> bool:
    try:
        prompt = await render_conversation(llm, conversation)
    except PromptTooLong:
        return False
    return len(prompt["prompt_token_ids"]) <= room
