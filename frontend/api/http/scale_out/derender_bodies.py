"""Derender bodies: generated token ids and the requests that they belong to, in vLLM's field names."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tetrad.frontend.api.http.scale_out.bodies import RenderChatRequest, RenderCompletionRequest
from tetrad.frontend.api.http.schemas.fields import Body, Flag, Integer, TokenIds
from tetrad.services.errors import InvalidRequest

MODEL = "A name that /v1/models lists. Unset: the first model."
_STREAM = "False: the body has a whole answer. True: it has a chunk of a stream, in other fields."


class GivenLogprob(Body):
    """The log-probability of a token."""

    token_id: Integer = Field(ge=0, description="The token.")
    logprob: float = Field(description="Its log-probability.")
    rank: Integer | None = Field(None, description="1 for the most likely token of the position.")


class GivenPosition(GivenLogprob):
    """A generated token and the other candidates of its position."""

    top_logprobs: list[GivenLogprob] = Field(default_factory=list, description="The most likely tokens.")


class GivenLogprobs(Body):
    """Log-probabilities by token ids."""

    content: list[GivenPosition] | None = Field(None, description="One entry for each token.")


class GivenChoice(Body):
    """One of the n outputs of a prompt."""

    index: Integer = Field(ge=0, description="Which of the n outputs.")
    token_ids: TokenIds = Field(description="What was generated; empty if the request was aborted before.")
    finish_reason: Literal["stop", "length", "abort", "repetition"] | None = Field("stop", description="Why it ended.")
    stop_reason: Integer | str | None = Field(None, description="The stop string or token id that ended it.")
    logprobs: GivenLogprobs | None = Field(None, description="Of the tokens.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_logprobs(self.token_ids, self.logprobs)
        return self


class GivenAnswer(Body):
    """An answer of /inference/v1/generate with output_mode tokens."""

    request_id: str = Field(description="The id of the answer.")
    output_mode: Literal["tokens"] = Field("tokens", description="Always tokens: text needs no derendering.")
    choices: list[GivenChoice] = Field(min_length=1, description="The outputs.")
    prompt_token_ids: TokenIds | None = Field(None, description="The prompt, if the answer has it.")
    prompt_logprobs: list[Any] | None = Field(None, description="Must be null: the answers of this endpoint have none.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prompt_logprobs is not None:
            text = "prompt_logprobs is not supported by the derender endpoint; remove it from the answer."
            raise InvalidRequest(text, field="prompt_logprobs")
        return self


class DerenderChatRequest(Body):
    """The body of POST /v1/chat/completions/derender."""

    stream: Flag = Field(False, description=_STREAM)
    model: str | None = Field(None, description=MODEL)
    generate_response: GivenAnswer = Field(description="What /inference/v1/generate answered.")
    prompt_tokens: Integer | None = Field(None, ge=0, description="Tokens of the prompt, for usage. Unset: those of its ids.")
    prompt_token_ids: TokenIds | None = Field(None, description="The prompt. Unset: that of generate_response.")
    chat_request: RenderChatRequest | None = Field(
        None, description="The request that was rendered, for its tools, its formats and the fields that it requests."
    )


class DerenderCompletionRequest(Body):
    """The body of POST /v1/completions/derender."""

    stream: Flag = Field(False, description=_STREAM)
    model: str | None = Field(None, description=MODEL)
    generate_responses: list[GivenAnswer] = Field(min_length=1, description="An answer for each prompt, in their order.")
    prompt_tokens: list[Annotated[Integer, Field(ge=0)]] | None = Field(
        None, description="Tokens of each prompt, for usage. Unset: those of its ids."
    )
    prompt_token_ids: list[TokenIds | None] | None = Field(None, description="The prompts. Unset: those of the answers.")
    completion_request: RenderCompletionRequest | None = Field(None, description="The request that was rendered.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("prompt_tokens", "prompt_token_ids"):
            given, number = getattr(self, name), len(self.generate_responses)
            if given is not None and len(given) != number:
                text = f"{name} must have an entry for each of the {number} generate_responses, got {len(given)}."
                raise InvalidRequest(text, field=name)
        return self


def check_logprobs(token_ids: list[int], logprobs: GivenLogprobs | None) -> None:
    """Raise InvalidRequest if log-probabilities are not those of the tokens."""
    content = None if logprobs is None else logprobs.content
    if content is not None and [each.token_id for each in content] != token_ids:
        raise InvalidRequest("logprobs.content must have an entry for each of token_ids, in their order.", field="logprobs")
