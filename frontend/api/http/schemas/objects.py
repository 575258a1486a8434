"""Objects: OpenAI's response objects as msgspec structs, and their encoding.

Structs are used instead of models: with 64 concurrent streams the encoding of chunks takes more time than any other line of the
frontend.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.spec_decode_metrics import RequestSpecDecodeMetrics, summed
from tetrad.services.predicted_text import PredictedText

_encoder = msgspec.json.Encoder()


class PromptTokensDetails(msgspec.Struct):
    """Prompt tokens by their source."""

    cached_tokens: Annotated[int, Meta(description="Taken from the prefix cache instead of computed.")]


class CompletionTokensDetails(msgspec.Struct, omit_defaults=True):
    """Completion tokens by their use."""

    reasoning_tokens: Annotated[int, Meta(description="Spent on reasoning.")]
    accepted_prediction_tokens: Annotated[
        int | None, Meta(description="Of `prediction`: those that are in the answer; only with one.")
    ] = None
    rejected_prediction_tokens: Annotated[
        int | None, Meta(description="Of `prediction`: those that are not in the answer; only with one.")
    ] = None


class Usage(msgspec.Struct, omit_defaults=True):
    """Tokens of a request."""

    prompt_tokens: Annotated[int, Meta(description="Of all prompts, each counted once, whatever n is.")]
    completion_tokens: Annotated[int, Meta(description="Generated, reasoning included, in all choices together.")]
    total_tokens: Annotated[int, Meta(description="The sum of both.")]
    prompt_tokens_details: Annotated[PromptTokensDetails | None, Meta(description="Where prompt tokens came from.")] = None
    completion_tokens_details: Annotated[
        CompletionTokensDetails | None, Meta(description="What completion tokens were used for; in chats.")
    ] = None


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities in the completions API: parallel lists over tokens."""

    tokens: Annotated[list[str], Meta(description="Text of each token; `token_id:5` with return_tokens_as_token_ids.")]
    token_logprobs: Annotated[
        list[float | None], Meta(description="Log-probability of each token; null for the first of an echoed prompt.")
    ]
    top_logprobs: Annotated[
        list[dict[str, float] | None],
        Meta(description="Token to log-probability, of the most likely tokens and the one that was taken."),
    ]
    text_offset: Annotated[list[int], Meta(description="Characters of the choice's text before each token.")]


class TopLogprob(msgspec.Struct, gc=False):
    """A candidate."""

    token: Annotated[str, Meta(description="Its text; `token_id:5` with return_tokens_as_token_ids.")]
    logprob: Annotated[float, Meta(description="Its log-probability; -9999 for what is impossible.")]
    bytes: Annotated[list[int] | None, Meta(description="Its text in UTF-8; null for a part of a character.")]


class TokenLogprob(msgspec.Struct):
    """A token and the other candidates."""

    token: Annotated[str, Meta(description="Its text; `token_id:5` with return_tokens_as_token_ids.")]
    logprob: Annotated[float, Meta(description="Its log-probability; -9999 for what is impossible.")]
    bytes: Annotated[list[int], Meta(description="Its text in UTF-8; the token that completes a character has all of it.")]
    top_logprobs: Annotated[list[TopLogprob], Meta(description="The most likely tokens at this position, likeliest first.")]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities in the chat API."""

    content: Annotated[list[TokenLogprob], Meta(description="One entry for each generated token, marks included.")]
    refusal: Annotated[list[TokenLogprob] | None, Meta(description="Always null: models have no refusals of their own.")] = None


class PromptLogprob(msgspec.Struct, gc=False):
    """Log-probability of a token at a position of the prompt."""

    logprob: Annotated[float, Meta(description="Its log-probability; -9999 for what is impossible.")]
    rank: Annotated[int | None, Meta(description="1 for the most likely token of the position.")]
    decoded_token: Annotated[str | None, Meta(description="Its text.")]


PromptLogprobs = list[dict[str, PromptLogprob] | None]


KvTransferParams = Annotated[
    dict[str, Any] | UnsetType,
    Meta(
        description="After do_remote_decode: where the prompt's KV blocks are kept. It is kv_transfer_params of the request"
        " to the engine core that reads them. In a stream, with its last choice.",
        extra_json_schema={"additionalProperties": True},
    ),
]


def kv_transfer_params_of(output: RequestOutput) -> dict[str, Any] | UnsetType:
    """Return an output's kv_transfer_params; UNSET if it has none."""
    return UNSET if output.kv_transfer_params is None else output.kv_transfer_params


class AnswerMetrics(msgspec.Struct):
    """Measurements of a request."""

    speculative_decoding: Annotated[
        dict[str, Any],
        Meta(
            description="Drafted and accepted tokens of all outputs, as vLLM counts them; only where the engine core measures "
            "the drafts of single requests.",
            extra_json_schema={"additionalProperties": True},
        ),
    ]


Metrics = Annotated[AnswerMetrics | UnsetType, Meta(description="Of the request; in a stream, in the usage chunk.")]


class CompletionChoice(msgspec.Struct):
    """One output, or the new part of it."""

    index: Annotated[int, Meta(description="Output j of prompt i is i * n + j.")]
    text: Annotated[str, Meta(description="What was generated; in a chunk, what is new.")]
    logprobs: Annotated[CompletionLogprobs | None, Meta(description="Of these tokens, if asked for.")] = None
    finish_reason: Annotated[str | None, Meta(description="stop, length, repetition or abort; null while it goes on.")] = None
    stop_reason: Annotated[
        int | str | None, Meta(description="The stop string or token id that ended it; null at the end of text.")
    ] = None
    token_ids: Annotated[list[int] | UnsetType, Meta(description="Ids of these tokens, with return_token_ids.")] = UNSET
    prompt_token_ids: Annotated[
        list[int] | UnsetType, Meta(description="Ids of the prompt, with return_token_ids; in a choice's first chunk.")
    ] = UNSET
    prompt_logprobs: Annotated[
        PromptLogprobs | UnsetType, Meta(description="For each token of the prompt, facts by token id; null for the first.")
    ] = UNSET


class Completion(msgspec.Struct):
    """A completion, or a chunk of one."""

    id: Annotated[str, Meta(description="`cmpl-` and the request's id; the same in all chunks.")]
    object: Annotated[str, Meta(description="Always text_completion.")]
    created: Annotated[int, Meta(description="When it was asked for, in Unix seconds.")]
    model: Annotated[str, Meta(description="The name that answered.")]
    choices: Annotated[list[CompletionChoice], Meta(description="The outputs; in a chunk, one; in a usage chunk, none.")]
    usage: Annotated[
        Usage | UnsetType | None,
        Meta(description="Tokens; in chunks only with stream_options.include_usage, null but at the end."),
    ] = UNSET
    kv_transfer_params: KvTransferParams = UNSET
    metrics: Metrics = UNSET


class ErrorDetail(msgspec.Struct):
    """OpenAI's error object."""

    message: Annotated[str, Meta(description="For people: names the value, the limit and what to do.")]
    type: Annotated[str, Meta(description="authentication_error, rate_limit_error, invalid_request_error, server_error, ...")]
    param: Annotated[str | None, Meta(description="The field at fault, if it is one.")]
    code: Annotated[str | None, Meta(description="For programs: what exactly, as invalid_value or context_length_exceeded.")]


class ErrorBody(msgspec.Struct):
    """OpenAI's error object: the answer to a failed request, or the last event of a failed stream."""

    error: Annotated[ErrorDetail, Meta(description="What is wrong.")]


def encode(value: object) -> bytes:
    """Return `value` as JSON."""
    return _encoder.encode(value)


def event(value: object) -> bytes:
    """Return `value` as one server-sent event."""
    return b"data: %b\n\n" % _encoder.encode(value)


class JsonResponse(Response):
    """A response whose body msgspec encodes."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the body."""
        return encode(content)


class UsageCount:
    """Counts the tokens of an HTTP request, which may consist of several engine requests."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._num_completion_tokens = 0
        self._num_reasoning_tokens: int | None = None
        self._predicted: dict[int, PredictedText] = {}
        self._drafts: list[RequestSpecDecodeMetrics] = []

    def add(self, place: int, output: RequestOutput, *, num_tokens: int | None = None) -> None:
        """Count an output of the `place`-th prompt.

        Args:
            place: index of the prompt.
            output: an output with new tokens only.
            num_tokens: number of tokens to count instead of the output's; None: the output's.
        """
        self._prompts[place] = (len(output.prompt_token_ids), output.num_cached_tokens or 0)
        ended = [each.spec_decode_metrics for each in output.outputs if each.finish_reason is not None]
        self._drafts += [each for each in ended if each is not None]
        if num_tokens is not None:
            self._num_completion_tokens += num_tokens
            return
        for each in output.outputs:
            self._num_completion_tokens += len(each.token_ids)

    def add_reasoning(self, num_tokens: int) -> None:
        """Count reasoning tokens; the usage has their number only if this was called."""
        self._num_reasoning_tokens = (self._num_reasoning_tokens or 0) + num_tokens

    def add_predicted(self, output: RequestOutput, predicted_ids: list[int]) -> None:
        """Compare an output, which has new tokens only, with the expected tokens of each choice."""
        for each in output.outputs:
            if each.index not in self._predicted:
                self._predicted[each.index] = PredictedText(predicted_ids)
            self._predicted[each.index].follow(each.token_ids)

    def metrics(self) -> AnswerMetrics | UnsetType:
        """Return the measurements of the request; UNSET if there are none."""
        drafts = summed(self._drafts)
        return UNSET if drafts is None else AnswerMetrics(drafts.to_dict())

    def usage(self) -> Usage:
        """Return the usage so far."""
        prompt_tokens = sum(tokens for tokens, _ in self._prompts.values())
        cached = sum(cached for _, cached in self._prompts.values())
        return Usage(
            prompt_tokens,
            self._num_completion_tokens,
            prompt_tokens + self._num_completion_tokens,
            PromptTokensDetails(cached),
            self._details(),
        )

    def _details(self) -> CompletionTokensDetails | None:
        if self._num_reasoning_tokens is None:
            return None
        if not self._predicted:
            return CompletionTokensDetails(self._num_reasoning_tokens)
        found = sum(text.num_found for text in self._predicted.values())
        missing = sum(text.num_missing for text in self._predicted.values())
        return CompletionTokensDetails(self._num_reasoning_tokens, found, missing)
