"""Sampling wire: checks a request's parameters against the contract (protos/tetrad/v1/types.proto), and measures their size.

Called by admission for every submission. Frontends check ranges too; a submission of any other client is refused alone here,
before its parameters reach a worker. Parameters that leave no token to sample are refused here for all clients. Knows ranges;
the worker applies the parameters.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal

from tetrad.engine_core_svc.core.message_sizes import MessageSizes
from tetrad.engine_core_svc.core.request import LogprobWidths
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import U32_BYTES, unpack_u32
from tetrad.v1 import types_pb2

MAX_BAD_WORDS = 65_536
NO_ID = 0xFFFFFFFF
"""Stands for no id in prompt_score_ids."""
_RANGES = (
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)
_ID_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "thinking_start_token_ids", "thinking_end_token_ids")
_MAX_BIAS = 100.0


def check_sampling(params: types_pb2.SamplingParams, *, eos_token_id: int | None, vocab_size: int) -> None:
    """Raise InvalidRequest, which names parameter, value and limit, for a parameter out of range."""
    _check_numbers(params, vocab_size)
    for name in _ID_LISTS:
        _check_ids(name, getattr(params, name), vocab_size)
    if params.logit_bias:
        _check_ids("logit_bias", params.logit_bias, vocab_size)
        wrong = next((bias for bias in params.logit_bias.values() if not -_MAX_BIAS <= bias <= _MAX_BIAS), None)
        _require(wrong is None, "logit_bias", "values must be in [-100, 100]", wrong)
    if params.HasField("prompt_score_ids"):
        _check_score_ids(params.prompt_score_ids, vocab_size)
    if params.HasField("speech_rules"):
        _check_speech_rules(params.speech_rules, vocab_size)
    if params.bad_words_token_ids:
        _check_bad_words(params.bad_words_token_ids, vocab_size)
    if eos_token_id is not None and params.min_tokens:  # until min_tokens it is masked
        _check_ids("eos_token_id", (eos_token_id,), vocab_size)
    if params.allowed_token_ids and params.min_tokens:
        _check_first_token(params, eos_token_id)


def check_score_rows(params: types_pb2.SamplingParams, num_prompt_tokens: int) -> None:
    """Raise InvalidRequest if prompt_score_ids does not fit a prompt of this length."""
    if not params.HasField("prompt_score_ids"):
        return
    message, name = params.prompt_score_ids, "prompt_score_ids"
    num_rows = num_prompt_tokens - 1 - message.start
    _require(num_rows > 0, f"{name}.start", f"must be less than the prompt's {num_prompt_tokens} tokens less 1", message.start)
    given = len(message.token_ids) // (U32_BYTES * message.width)
    _require(given in (1, num_rows), name, f"must have 1 or {num_rows} rows", given)


def logprob_widths(params: types_pb2.SamplingParams, vocab_size: int) -> LogprobWidths:
    """Return how many candidates each position of the requested log-probabilities has."""

    def width(name: Literal["logprobs", "prompt_logprobs"]) -> int:
        if not params.HasField(name):
            return 0
        number = getattr(params, name)
        return 1 + (vocab_size if number == -1 else number)

    listed, scored = params.logprob_token_ids, params.prompt_score_ids
    return LogprobWidths(
        sampled=1 + len(listed) if listed else width("logprobs"),
        prompt=width("prompt_logprobs"),
        scored=scored.width,
        scored_from=scored.start,
    )


def _check_first_token(params: types_pb2.SamplingParams, eos_token_id: int | None) -> None:
    """Raise InvalidRequest if all allowed ids end the output while min_tokens forbids its end."""
    if params.HasField("thinking_token_budget"):  # the end of reasoning is written regardless of the allowed ids
        return
    ends = {*params.stop_token_ids} if eos_token_id is None else {*params.stop_token_ids, eos_token_id}
    if ends.issuperset(params.allowed_token_ids):
        shown = ", ".join(map(str, sorted(params.allowed_token_ids)[:8]))
        text = (
            f"allowed_token_ids has no id but those that end the output ({shown}), and min_tokens={params.min_tokens} forbids "
            "these: no token could be generated. Allow another id or set min_tokens to 0."
        )
        raise InvalidRequest(text, field="allowed_token_ids")


def message_sizes(params: types_pb2.SamplingParams, widths: LogprobWidths) -> MessageSizes:
    """Return the bytes that a request with these parameters adds to a step's messages, without its names."""
    return MessageSizes(
        params_bytes=params.ByteSize(),
        params_id=id(params),
        logprob_bytes=_position_bytes(widths.sampled),
        prompt_logprob_bytes=_position_bytes(widths.prompt) + widths.scored * U32_BYTES,
    )


def _position_bytes(width: int) -> int:
    """Return the bytes of one position in a result: ids and values of `width` candidates, a rank and a handle; 0 for 0."""
    return (2 * width + 2) * U32_BYTES if width else 0


def _check_numbers(params: types_pb2.SamplingParams, vocab_size: int) -> None:
    for name, least, most in _RANGES:
        value = getattr(params, name)
        _require(least <= value <= most, name, f"must be in [{least:g}, {most:g}]", value)
    if params.HasField("repetition_penalty"):
        value = params.repetition_penalty
        _require(value > 0 and math.isfinite(value), "repetition_penalty", "must be a finite number above zero", value)
    _require(params.top_k >= -1, "top_k", "must be at least -1", params.top_k)
    for name in ("logprobs", "prompt_logprobs"):
        number = getattr(params, name)
        _require(-1 <= number <= vocab_size, name, f"must be in [-1, {vocab_size}]", number)
    if params.HasField("max_tokens"):
        rule = f"must be at most max_tokens {params.max_tokens}"
        _require(params.min_tokens <= params.max_tokens, "min_tokens", rule, params.min_tokens)


def _check_bad_words(words: Sequence[types_pb2.TokenIds], vocab_size: int) -> None:
    name = "bad_words_token_ids"
    _require(len(words) <= MAX_BAD_WORDS, name, f"may hold at most {MAX_BAD_WORDS} words", len(words))
    for word in words:
        ids = unpack_u32(word.ids)
        _require(bool(ids), name, "must not hold an empty word", "one")
        _require(max(ids) < vocab_size, name, f"must hold ids below {vocab_size}", max(ids))


def _check_score_ids(message: types_pb2.PromptScoreIds, vocab_size: int) -> None:
    name, width = "prompt_score_ids", message.width
    ids = unpack_u32(message.token_ids)
    _require(width > 0, f"{name}.width", "must be at least 1", width)
    _require(width == 1 or not message.HasField("num_positions"), f"{name}.width", "must be 1 with num_positions", width)
    _require(bool(ids) and len(ids) % width == 0, name, f"must have rows of {width} ids", f"{len(ids)} ids")
    _check_ids(name, {*ids} - {NO_ID}, vocab_size)


def _check_speech_rules(rules: types_pb2.SpeechRules, vocab_size: int) -> None:
    columns = (rules.suppressed_token_ids, rules.suppressed_first_token_ids)
    _check_ids("speech_rules", [rules.first_timestamp_id, *chain.from_iterable(map(unpack_u32, columns))], vocab_size)


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    largest = max(ids, default=0)
    _require(largest < vocab_size, name, f"must hold ids below {vocab_size}", largest)


def _require(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise InvalidRequest(f"{name} {rule}, got {value}.", field=name)
