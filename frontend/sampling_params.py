"""SamplingParams: how to choose tokens and what to return, with vLLM's fields, defaults and error texts.

A public Python type, also what HTTP and gRPC requests become. Knows ranges that hold for every model; limits that depend on
the model or the server (vocabulary, context, caps) are checked in limits.py. One difference from vLLM: n > 1 at temperature
0 is allowed, as in OpenAI's API.
"""

import copy
import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

from tetrad.frontend.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

GREEDY_BELOW = 1e-5
_COLDEST = 0.01
_MAX_N = 16384
_MAX_U32 = 2**32 - 1
_MAX_LOGPROB_IDS = 128


class RequestOutputKind(IntEnum):
    """What each RequestOutput of a request carries."""

    CUMULATIVE = 0
    """Everything so far."""
    DELTA = 1
    """What is new since the last one."""
    FINAL_ONLY = 2
    """One output, at the end."""


@dataclass(frozen=True)
class RepetitionDetection:
    """Ends a request when a pattern of tokens repeats at its end; see types.proto."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


@dataclass
class SamplingParams:
    """How to sample one request.

    Args:
        n: number of independent outputs.
        temperature: 0 is greedy; range [0, 2].
        top_p: keep the most likely tokens that together have this probability; (0, 1].
        top_k: keep this many most likely tokens; 0 or -1 is off.
        min_p: drop tokens less likely than this times the most likely one.
        seed: makes sampling repeatable; -1 or None draws one. Output i of n uses seed + i.
        stop: strings that end the output.
        max_tokens: most tokens to generate; None means as many as the context holds.
        logprobs: log-probabilities of this many top tokens; -1 is the whole vocabulary.

    The other fields are documented in types.proto.

    Raises:
        InvalidRequest: a value out of range; the message names value and limit, `field` the parameter.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    extra_args: dict[str, Any] | None = None
    _stops: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_ranges()
        self._check_lists()
        if self.seed == -1:
            self.seed = None
        if self.is_greedy:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        elif self.temperature < _COLDEST:
            # Smaller temperatures overflow float32 logits.
            self.temperature = _COLDEST
        self._stops = tuple(self.stop or ())

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, in the order given."""
        return self._stops

    def clone(self) -> Self:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def _check_counts(self) -> None:
        _integer("n", self.n)
        if self.n < 1:
            raise _wrong("n", f"n must be at least 1, got {self.n}.")
        if self.n > _MAX_N:
            raise _wrong("n", f"n must be at most {_MAX_N}, got {self.n}.")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens)
            if self.max_tokens < 1:
                raise _wrong("max_tokens", f"max_tokens must be at least 1, got {self.max_tokens}.")
        _integer("min_tokens", self.min_tokens)
        if self.min_tokens < 0:
            raise _wrong("min_tokens", f"min_tokens must be greater than or equal to 0, got {self.min_tokens}.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            text = f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, got {self.min_tokens}."
            raise _wrong("min_tokens", text)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _integer(name, value)
                if value < -1:
                    raise _wrong(name, f"{name} must be non-negative or -1, got {value}.")
        if self.seed is not None:
            _integer("seed", self.seed)
            if not -(2**63) <= self.seed < 2**63:
                raise _wrong("seed", f"seed must fit 64 bits, got {self.seed}.")

    def _check_ranges(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= _number(name, getattr(self, name)) <= 2.0:
                raise _wrong(name, f"{name} must be in [-2, 2], got {getattr(self, name)}.")
        if not math.isfinite(_number("repetition_penalty", self.repetition_penalty)):
            raise _wrong("repetition_penalty", f"repetition_penalty must be a finite number, got {self.repetition_penalty}.")
        if self.repetition_penalty <= 0.0:
            text = f"repetition_penalty must be greater than zero, got {self.repetition_penalty}."
            raise _wrong("repetition_penalty", text)
        if _number("temperature", self.temperature) < 0.0:
            raise _wrong("temperature", f"temperature must be non-negative, got {self.temperature}.")
        if not self.temperature <= 2.0:
            raise _wrong("temperature", f"temperature must be in [0, 2], got {self.temperature}.")
        if not 0.0 < _number("top_p", self.top_p) <= 1.0:
            raise _wrong("top_p", f"top_p must be in (0, 1], got {self.top_p}.")
        _integer("top_k", self.top_k)
        if self.top_k < -1:
            raise _wrong("top_k", f"top_k must be 0 (disable), or at least 1, got {self.top_k}.")
        if not 0.0 <= _number("min_p", self.min_p) <= 1.0:
            raise _wrong("min_p", f"min_p must be in [0, 1], got {self.min_p}.")

    def _check_lists(self) -> None:
        self.stop = _strings("stop", self.stop)
        if self.stop and not self.detokenize:
            text = "stop strings are only supported when detokenize is True. Set detokenize=True to use stop."
            raise _wrong("stop", text)
        self.bad_words = _strings("bad_words", self.bad_words)
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            ids = getattr(self, name)
            if ids is not None:
                setattr(self, name, _token_ids(name, ids))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise _wrong("allowed_token_ids", "allowed_token_ids is not None and empty!")
        if self.logprob_token_ids is not None and len(self.logprob_token_ids) > _MAX_LOGPROB_IDS:
            text = f"logprob_token_ids may hold at most {_MAX_LOGPROB_IDS} ids, got {len(self.logprob_token_ids)}."
            raise _wrong("logprob_token_ids", text)
        if self.logit_bias is not None:
            self.logit_bias = _biases(self.logit_bias)


def _wrong(name: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, field=name)


def _integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, f"{name} must be an integer, got {value!r}.")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, f"{name} must be a number, got {value!r}.")
    return value


def _strings(name: str, value: object) -> list[str]:
    strings = [value] if isinstance(value, str) else list(value or ())  # type: ignore[call-overload] # checked below
    for string in strings:
        if not isinstance(string, str):
            raise _wrong(name, f"{name} must contain only strings, got {string!r}.")
        if not string:
            raise _wrong(name, f"{name} cannot contain an empty string.")
    return strings


def _token_ids(name: str, ids: object) -> list[int]:
    values: list[int] = list(ids)  # type: ignore[call-overload] # any iterable of ids
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, f"{name} must contain only integers, got {value!r}.")
        if not 0 <= value <= _MAX_U32:
            raise _wrong(name, f"token_id(s) [{value}] in {name} contain out-of-vocab token ids.")
    return values


def _biases(biases: dict[int, float]) -> dict[int, float]:
    checked = {}
    for key, bias in biases.items():
        try:
            token_id = int(key)
        except (TypeError, ValueError):
            raise _wrong("logit_bias", f"logit_bias must map token ids to numbers, got the key {key!r}.") from None
        if not 0 <= token_id <= _MAX_U32:
            raise _wrong("logit_bias", f"token_id(s) [{token_id}] in logit_bias contain out-of-vocab token ids.")
        if math.isnan(_number("logit_bias", bias)):
            raise _wrong("logit_bias", f"logit_bias of token {token_id} must be a number, got {bias}.")
        checked[token_id] = min(100.0, max(-100.0, bias))
    return checked
