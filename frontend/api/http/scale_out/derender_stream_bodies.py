"""Derender stream bodies: a chunk of a stream of /inference/v1/generate with the state of its earlier chunks, in vLLM's names.

A body of the derender endpoints has one of two forms: a whole answer, or, with `stream`, a chunk.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, RootModel, Tag, model_validator

from tetrad.frontend.api.http.scale_out.bodies import RenderChatRequest, RenderCompletionRequest
from tetrad.frontend.api.http.scale_out.derender_bodies import (
    MODEL,
    DerenderChatRequest,
    DerenderCompletionRequest,
    GivenLogprobs,
    check_logprobs,
)
from tetrad.frontend.api.http.schemas.fields import Body, Integer, TokenIds
from tetrad.services.errors import InvalidRequest

CONTEXT_TOKENS = 16
"""Number of prompt tokens in a state: they determine whether the output's first token starts with a space."""

_STREAM = "True: the body has a chunk of a stream."
_STATE = "The state that the answer to the previous chunk has. Unset: this is the first chunk."
_PROMPT = "The prompt, the same with each chunk. Unset: that of the first chunk, if it has one."
_COUNT = "Tokens of the prompt, for usage. Unset: as the chunk's usage says."
_WHOLE, _CHUNK = "an answer", "a chunk"

FinishReason = Literal["stop", "length", "abort", "repetition"]


class GivenChunkChoice(Body):
    """The new tokens of one output."""

    index: Integer = Field(ge=0, description="Which of the n outputs.")
    token_ids: TokenIds | None = Field(None, description="What is new.")
    finish_reason: FinishReason | None = Field(None, description="Why it ended; null while it goes on.")
    stop_reason: Integer | str | None = Field(None, description="The stop string or token id that ended it.")
    logprobs: GivenLogprobs | None = Field(None, description="Of the new tokens.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_logprobs(self.token_ids or [], self.logprobs)
        return self


class GivenTokensDetails(Body):
    """Prompt tokens by their source."""

    cached_tokens: Integer | None = Field(None, ge=0, description="Taken from the prefix cache.")


class GivenUsage(Body):
    """Tokens of the request so far."""

    prompt_tokens: Integer = Field(0, ge=0, description="Of the prompt.")
    completion_tokens: Integer | None = Field(0, ge=0, description="Generated, in all choices together.")
    prompt_tokens_details: GivenTokensDetails | None = Field(None, description="Where prompt tokens came from.")


class GivenChunk(Body):
    """A chunk of a stream of /inference/v1/generate with output_mode tokens."""

    request_id: str = Field(description="The id of the stream.")
    output_mode: Literal["tokens"] = Field("tokens", description="Always tokens: text needs no derendering.")
    choices: list[GivenChunkChoice] = Field(description="What is new; empty in the usage chunk.")
    usage: GivenUsage | None = Field(None, description="Tokens of the request, if the chunk has them.")
    prompt_token_ids: TokenIds | None = Field(None, description="The prompt, if the chunk has it.")


class GivenStateChoice(Body):
    """The tokens so far of one output."""

    model_config = ConfigDict(extra="forbid")

    index: Integer = Field(ge=0, description="Which of the n outputs.")
    output_token_ids: TokenIds = Field(description="Its tokens so far.")
    output_chunk_lens: list[Annotated[Integer, Field(ge=0)]] = Field(description="Number of tokens of each chunk so far.")
    finish_reason: FinishReason | None = Field(None, description="Why it ended, if it has.")
    stop_reason: Integer | str | None = Field(None, description="The stop string or token id that ended it.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(self.output_chunk_lens) != len(self.output_token_ids):
            text = f"output_chunk_lens must sum to the number of output_token_ids ({len(self.output_token_ids)})."
            raise InvalidRequest(text, field="stream_state.choices.output_chunk_lens")
        return self


class GivenState(Body):
    """The state of a stream after its earlier chunks. Clients send it back unchanged."""

    model_config = ConfigDict(extra="forbid")

    request_id: str = Field(description="The id of the stream.")
    created: Integer = Field(ge=0, description="When its first chunk was derendered.")
    context_token_ids: TokenIds = Field(max_length=CONTEXT_TOKENS, description="The end of the prompt.")
    choices: list[GivenStateChoice] = Field(description="The outputs.")


class _ChunkBody(Body):
    stream: Literal[True] = Field(description=_STREAM)
    model: str | None = Field(None, description=MODEL)
    generate_chunk: GivenChunk = Field(description="A chunk of the stream of /inference/v1/generate.")
    stream_state: GivenState | None = Field(None, description=_STATE)
    prompt_tokens: Integer | None = Field(None, ge=0, description=_COUNT)
    prompt_token_ids: TokenIds | None = Field(None, description=_PROMPT)

    @model_validator(mode="after")
    def _check(self) -> Self:
        state = self.stream_state
        if state is not None and state.request_id != self.generate_chunk.request_id:
            text = f"stream_state belongs to another stream, {state.request_id[:64]!r}, not to that of generate_chunk."
            raise InvalidRequest(text, field="stream_state.request_id")
        return self


class DerenderChatChunkRequest(_ChunkBody):
    """POST /v1/chat/completions/derender with stream."""

    chat_request: RenderChatRequest | None = Field(
        None, description="The request that was rendered, for its tools, its formats and the fields that it requests."
    )


class DerenderCompletionChunkRequest(_ChunkBody):
    """POST /v1/completions/derender with stream."""

    completion_request: RenderCompletionRequest | None = Field(None, description="The request that was rendered.")


def _form(body: Any) -> str:
    stream = body.get("stream") if isinstance(body, dict) else getattr(body, "stream", False)
    return _CHUNK if stream is True else _WHOLE


class DerenderChatBody(RootModel[Any]):
    """POST /v1/chat/completions/derender."""

    root: Annotated[
        Annotated[DerenderChatRequest, Tag(_WHOLE)] | Annotated[DerenderChatChunkRequest, Tag(_CHUNK)], Discriminator(_form)
    ]


class DerenderCompletionBody(RootModel[Any]):
    """POST /v1/completions/derender."""

    root: Annotated[
        Annotated[DerenderCompletionRequest, Tag(_WHOLE)] | Annotated[DerenderCompletionChunkRequest, Tag(_CHUNK)],
        Discriminator(_form),
    ]
