"""Scale-out objects: the answers of rendering and of generation from token ids, as msgspec structs."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.objects import ChatLogprobs, KvTransferParams, Metrics, PromptLogprobs, Usage
from tetrad.frontend.request.outputs import PositionLogprobs

# JSON has no -inf; vLLM sends this value for impossible tokens.
_LEAST = -9999.0
_FINISH_REASON = "stop, length, repetition or abort; in a stream, null while it goes on."
_STOP_REASON = "The stop string or token id that ended it; null at the end of text."


class RenderedRequest(msgspec.Struct, kw_only=True):
    """A request as token ids: a body of /inference/v1/generate."""

    request_id: Annotated[str, Meta(description="`chatcmpl-` or `cmpl-`, and the request's id.")]
    token_ids: Annotated[list[int], Meta(description="The prompt.")]
    token_offsets: Annotated[None, Meta(description="Always null: tokenizers here return no offsets.")] = None
    features: Annotated[None, Meta(description="Always null: prompts are text.")] = None
    content_parts: Annotated[None, Meta(description="Always null: prompts are text.")] = None
    sampling_params: Annotated[
        dict[str, Any],
        Meta(
            description="By SamplingParams' names: max_tokens, and what differs from the defaults.",
            extra_json_schema={"additionalProperties": True},
        ),
    ]
    model: Annotated[str | None, Meta(description="The model that was asked for.")] = None
    reasoning_ended: Annotated[
        bool | None, Meta(description="True: a constraint holds from the first token. Null: the prompt says so.")
    ] = None
    reasoning_parser_kwargs: Annotated[None, Meta(description="Always null: the prompt itself says it.")] = None
    return_token_ids: Annotated[bool | None, Meta(description="As it was asked for.")] = None
    output_mode: Annotated[Literal["tokens"], Meta(description="Always tokens.")] = "tokens"
    stream: Annotated[bool, Meta(description="As it was asked for.")] = False
    stream_options: Annotated[dict[str, bool | None] | None, Meta(description="As they were given.")] = None
    cache_salt: Annotated[str | None, Meta(description="As it was given.")] = None
    priority: Annotated[int, Meta(description="As it was given.")] = 0
    kv_transfer_params: Annotated[
        Annotated[dict[str, Any], Meta(extra_json_schema={"additionalProperties": True})] | None,
        Meta(description="As they were given."),
    ] = None
    ec_transfer_params: Annotated[None, Meta(description="Always null: no encoder connector is configured.")] = None


class IdLogprob(msgspec.Struct, gc=False):
    """The log-probability of a token."""

    token_id: Annotated[int, Meta(description="The token.")]
    logprob: Annotated[float, Meta(description="Its log-probability; -9999 for what is impossible.")]
    rank: Annotated[int | None, Meta(description="1 for the most likely token of the position.")]


class IdPosition(IdLogprob):
    """A generated token and the other candidates of its position."""

    top_logprobs: Annotated[list[IdLogprob], Meta(description="The token itself first, then the most likely ones.")]


class IdLogprobs(msgspec.Struct):
    """Log-probabilities by token ids."""

    content: Annotated[list[IdPosition], Meta(description="One entry for each generated token.")]


class _Choice(msgspec.Struct, kw_only=True):
    index: Annotated[int, Meta(description="Which of the n outputs.")]
    finish_reason: Annotated[str | None, Meta(description=_FINISH_REASON)]
    stop_reason: Annotated[int | str | None, Meta(description=_STOP_REASON)]
    token_ids: Annotated[list[int], Meta(description="What was generated; in a chunk, what is new.")]


class TokensChoice(_Choice, kw_only=True):
    """One of the n outputs as token ids; in a chunk, the new part of it."""

    logprobs: Annotated[IdLogprobs | None, Meta(description="Of these tokens, if asked for.")]


class TextChoice(_Choice, kw_only=True):
    """One of the n outputs as text; in a chunk, the new part of it."""

    text: Annotated[str, Meta(description="The text. It ends before a stop string, which token_ids have.")]
    logprobs: Annotated[ChatLogprobs | None, Meta(description="Of these tokens, if asked for.")]


class _Answer(msgspec.Struct, kw_only=True):
    request_id: Annotated[str, Meta(description="`generate-tokens-` and the request's id.")]
    model: Annotated[str, Meta(description="The name that answered.")]
    created: Annotated[int, Meta(description="When it was asked for, in Unix seconds.")]
    usage: Annotated[Usage, Meta(description="Tokens of the request.")]
    prompt_logprobs: Annotated[
        PromptLogprobs | None, Meta(description="For each token of the prompt, facts by token id; null for the first.")
    ] = None
    prompt_token_id_logprobs: Annotated[
        str | UnsetType, Meta(description="With prompt_logprob_token_ids: float32 [rows, ids], an .npy file in base64.")
    ] = UNSET
    prompt_token_ids: Annotated[list[int] | None, Meta(description="Ids of the prompt, with return_token_ids.")] = None
    kv_transfer_params: KvTransferParams = UNSET
    metrics: Metrics = UNSET


class TokensAnswer(_Answer, kw_only=True):
    """The generated outputs as token ids."""

    output_mode: Annotated[Literal["tokens"], Meta(description="Always tokens.")] = "tokens"
    choices: Annotated[list[TokensChoice], Meta(description="The n outputs.")]


class TextAnswer(_Answer, kw_only=True):
    """The generated outputs as text."""

    output_mode: Annotated[Literal["text"], Meta(description="Always text.")] = "text"
    choices: Annotated[list[TextChoice], Meta(description="The n outputs.")]


class _Chunk(msgspec.Struct, kw_only=True):
    request_id: Annotated[str, Meta(description="`generate-tokens-` and the request's id; the same in all chunks.")]
    usage: Annotated[
        Usage | None,
        Meta(description="Only with stream_options.include_usage: in the last chunk, or with continuous_usage_stats in all."),
    ] = None
    prompt_token_ids: Annotated[
        list[int] | UnsetType, Meta(description="Ids of the prompt, with return_token_ids; in the first chunk.")
    ] = UNSET
    kv_transfer_params: KvTransferParams = UNSET
    metrics: Metrics = UNSET


class TokensChunk(_Chunk, kw_only=True):
    """A chunk of the outputs as token ids."""

    output_mode: Annotated[Literal["tokens"], Meta(description="Always tokens.")] = "tokens"
    choices: Annotated[list[TokensChoice], Meta(description="One; none in the usage chunk.")]


class TextChunk(_Chunk, kw_only=True):
    """A chunk of the outputs as text."""

    output_mode: Annotated[Literal["text"], Meta(description="Always text.")] = "text"
    choices: Annotated[list[TextChoice], Meta(description="One; none in the usage chunk.")]


def id_logprobs(ids: Sequence[int], positions: Sequence[PositionLogprobs], num_top: int, parts: LargeParts) -> IdLogprobs:
    """Return the log-probabilities of tokens, each with its first `num_top` candidates; long lists are added to `parts`."""
    content = []
    for token_id, position in zip(ids, positions, strict=True):
        found = position[token_id]
        kept = islice(position.items(), num_top)
        tops = [IdLogprob(candidate, max(each.logprob, _LEAST), each.rank) for candidate, each in kept]
        content.append(IdPosition(token_id, max(found.logprob, _LEAST), found.rank, parts.list_of(tops)))
    return IdLogprobs(parts.list_of(content, num_top))
