"""Inputs: the sampling parameters and the conversation of a request to /v1/responses, also for rendering and counting."""

import dataclasses
from collections.abc import Sequence

from tetrad.frontend.api.http.responses.bodies import LOGPROBS, InputBody, InputItem, ResponsesRequest
from tetrad.frontend.api.http.responses.conversations import conversation_of, json_format
from tetrad.frontend.api.http.responses.fitting import fitted
from tetrad.frontend.api.http.responses.lookup import MANY_ITEMS, history_before, resolved_items
from tetrad.frontend.api.http.responses.store import ResponseStore
from tetrad.frontend.api.http.turns.sampling import turn_sampling_params
from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.net.side_thread import unless_short
from tetrad.frontend.request.sampling_params import SamplingParams


def num_logprobs_of(body: ResponsesRequest) -> int | None:
    """Return the number of alternatives for each token; None: no log-probabilities are requested."""
    return (body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None


def response_params(llm: AsyncLLM, body: ResponsesRequest) -> SamplingParams:
    """Return the sampling parameters of a body; InvalidRequest for a value out of range."""
    num_logprobs = num_logprobs_of(body)
    return turn_sampling_params(
        body,
        llm.default_sampling_fields(),
        max_tokens=body.max_output_tokens,
        stop=body.stop,
        json_format=json_format(body),
        logprobs=num_logprobs,
        # Only deltas contain the texts of single tokens, and show how far a response in the background is.
        in_deltas=bool(body.stream or body.background) or num_logprobs is not None,
    )


async def conversation_behind(llm: AsyncLLM, store: ResponseStore, body: InputBody) -> tuple[Conversation, Sequence[InputItem]]:
    """Return the conversation that a response continues, and the items of the request itself.

    Raises:
        InvalidRequest: an item is wrong, or the conversation is too long for the context.
        NotFound: an earlier response or item does not exist.
    """
    items = await resolved_items(store, body.input)
    history = await history_before(store, body.previous_response_id)
    conversation = await unless_short(
        lambda: conversation_of(body, items, history), is_short=len(items) + len(history) < MANY_ITEMS
    )
    if body.truncation == "auto":
        limit, salt = (body.max_output_tokens, body.cache_salt) if isinstance(body, ResponsesRequest) else (None, None)
        # It is rendered several times: images are read once.
        messages = await llm.texts.with_files(conversation.messages, salt or "")
        conversation = dataclasses.replace(conversation, messages=messages)
        conversation = await fitted(llm, conversation, max_output_tokens=limit)
    return conversation, items
