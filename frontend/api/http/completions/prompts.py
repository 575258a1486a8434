"""Completion prompts: converts a completion body to prompts and sampling parameters."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tetrad.frontend.api.http.completions.bodies import CompletionRequest
from tetrad.frontend.api.http.schemas.sampling import sampling_params_of
from tetrad.frontend.request.prompt_embeds import PromptEmbeds
from tetrad.frontend.request.prompts import EmbedsPrompt, PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest

_DEFAULT_MAX_TOKENS = 16


def completion_params(body: CompletionRequest, defaults: dict[str, Any], *, max_tokens: int | None) -> SamplingParams:
    """Return the sampling parameters of a body; `max_tokens` None: OpenAI's default. See also sampling_params_of."""
    most = _DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    return sampling_params_of(body, defaults, max_tokens=most, logprobs=body.logprobs)


def prompts_of(body: CompletionRequest, embeds: Sequence[PromptEmbeds], most: int) -> list[PromptType]:
    """Return the prompts of a body, those with embeddings first; at most `most` are allowed."""
    given = [] if body.prompt is None else _id_and_text_prompts(body, most - len(embeds))
    return [*(EmbedsPrompt(prompt_embeds=each) for each in embeds), *given]


def _id_and_text_prompts(body: CompletionRequest, most: int) -> list[PromptType]:
    given = body.prompt
    assert given is not None
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [TokensPrompt(prompt_token_ids=msgspec.convert(given, list[int]))]
    if not given or "" in given or [] in given:
        raise InvalidRequest("The decoder prompt cannot be empty", field="prompt")
    if len(given) > most:
        raise InvalidRequest(f"prompt may hold at most {most} prompts, got {len(given)}.", field="prompt")
    return [
        each if isinstance(each, str) else TokensPrompt(prompt_token_ids=msgspec.convert(each, list[int])) for each in given
    ]
