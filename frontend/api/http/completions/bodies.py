"""Completion bodies: the body of /v1/completions, in OpenAI's and vLLM's field names, with its prompts and parameters."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

import msgspec
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator

from tetrad.frontend.api.http.schemas.fields import FailFastList, Flag, Integer, Strings, TokenIds
from tetrad.frontend.api.http.schemas.generation_fields import SamplingBody, sampling_params_of
from tetrad.frontend.request.prompt_embeds import PromptEmbeds
from tetrad.frontend.request.prompts import EmbedsPrompt, PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest

_DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingBody):
    """POST /v1/completions."""

    prompt: str | TokenIds | Strings | Annotated[list[TokenIds], FailFastList()] | None = Field(
        None, description="A text, token ids, or a list of either: each is completed for itself."
    )
    prompt_embeds: str | Strings | None = Field(
        None,
        description="A prompt as embeddings, or several: base64 of a safetensors file with one tensor [positions, hidden_size]"
        " of floats each. Needs --enable-prompt-embeds. Their choices come before those of `prompt`.",
    )
    echo: bool | None = Field(
        False,
        description="Begin each output with its prompt. With max_tokens 0, logprobs score the prompt alone.",
    )
    logprobs: Integer | None = Field(
        None, description="Return the log-probability of each token, and of this many of the most likely ones."
    )
    suffix: str | None = Field(None, description="Not supported: nothing can be inserted before a given end.")
    best_of: Integer | None = Field(
        None,
        description="Generate this many outputs for each prompt and return the n with the highest log-probability per token;"
        " not with stream.",
    )
    max_tokens: Integer | None = Field(16, description="Maximum number of tokens to generate, limited by the context.")
    add_special_tokens: Flag = Field(True, description="Let the tokenizer add BOS and the like to texts.")

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _check_form(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            # Each of the union's branches has its own error; none of them lists the allowed forms.
            text = "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids."
            raise InvalidRequest(text, field="prompt") from None

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.prompt is None and not self.prompt_embeds:
            raise InvalidRequest("Either prompt or prompt_embeds must be provided and non-empty.", field="prompt")
        if self.suffix:
            raise InvalidRequest("suffix is not currently supported", field="suffix")
        if self.best_of is not None:
            self._check_best_of(self.best_of, self.n or 1)
        return self

    def _check_best_of(self, best_of: int, n: int) -> None:
        if best_of < n:
            text = f"best_of must be greater than or equal to n, got n={n} and best_of={best_of}."
            raise InvalidRequest(text, field="best_of")
        if best_of > n and self.stream:
            raise InvalidRequest("best_of cannot be used with `stream=True`: the best are known at the end.", field="best_of")


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
