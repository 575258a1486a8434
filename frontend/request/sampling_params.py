"""SamplingParams: parameters of sampling and of outputs, with vLLM's fields, defaults and error texts.

A public Python type; HTTP and gRPC requests are converted to it. It checks the ranges that hold for every model; limits.py
checks the limits of the model and the server (vocabulary, context, settings). One difference from vLLM: n > 1 at temperature
0 is allowed, as in OpenAI's API.
"""

import copy
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from tetrad.frontend.request.foreign_sampling import ForeignSamplingParams, check_foreign
from tetrad.frontend.request.prompt_scores import ScoreIds, score_ids
from tetrad.frontend.request.sampling_values import (
    biases,
    check_extra_args,
    check_flag,
    check_integer,
    check_number,
    member_of,
    strings,
    token_ids,
    wrong,
)
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

GREEDY_BELOW = 1e-5
_COLDEST = 0.01
_MAX_N = 16384
_MAX_LOGPROB_IDS = 128
_MAX_PATTERN = 1024
_MAX_COUNT = 2**31 - 1


class RequestOutputKind(IntEnum):
    """The content of each RequestOutput of a request."""

    CUMULATIVE = 0
    """All text and ids so far."""
    DELTA = 1
    """The text and ids since the previous output."""
    FINAL_ONLY = 2
    """All text and ids in one output, at the end."""


@dataclass(frozen=True)
class RepetitionDetection:
    """Ends an output with finish_reason "repetition" when a pattern of tokens repeats at its end.

    Args:
        max_pattern_size: longest pattern that is detected, in tokens; 0 is off.
        min_pattern_size: shortest pattern that is detected, in tokens.
        min_count: number of consecutive occurrences of the pattern that end the output.

    Raises:
        InvalidRequest: a value out of range.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        for name in ("max_pattern_size", "min_pattern_size", "min_count"):
            check_integer(f"repetition_detection.{name}", getattr(self, name))
        least, most = self.min_pattern_size, self.max_pattern_size
        if least < 0 or least > most:
            text = f"repetition_detection.min_pattern_size must be in [0, max_pattern_size={most}], got {least}."
            raise wrong("repetition_detection", text)
        if most > _MAX_PATTERN:
            text = f"repetition_detection.max_pattern_size must be at most {_MAX_PATTERN}, got {most}."
            raise wrong("repetition_detection", text)
        if not 0 <= self.min_count <= _MAX_COUNT:
            text = f"repetition_detection.min_count must be in [0, {_MAX_COUNT}], got {self.min_count}."
            raise wrong("repetition_detection", text)
        # A pattern that occurs once is no repetition.
        if most and not 2 <= self.min_count <= _MAX_COUNT:
            text = f"repetition_detection.min_count must be at least 2, got {self.min_count}."
            raise wrong("repetition_detection", text)


_IMMUTABLE = frozenset({type(None), bool, int, float, str, RequestOutputKind})


@dataclass
class SamplingParams(ForeignSamplingParams):
    """Sampling parameters of one request.

    Args:
        n: number of independent outputs.
        presence_penalty: subtracted from the logit of every token that the output contains; [-2, 2].
        frequency_penalty: subtracted from the logit of a token once for each occurrence in the output; [-2, 2].
        repetition_penalty: divides logits of tokens in prompt and output; above 0, 1 is off.
        temperature: 0 is greedy; range [0, 2].
        top_p: keep the most likely tokens that together have this probability; (0, 1].
        top_k: keep this many most likely tokens; 0 or -1 is off.
        min_p: drop tokens less likely than this times the most likely one.
        seed: makes sampling repeatable; -1 or None: a random seed. Output i of n uses seed + i.
        stop: strings that end the output.
        stop_token_ids: ids that end the output; the id is part of the output ids, not of the text.
        ignore_eos: continue after the model's end of text.
        max_tokens: maximum number of tokens to generate; None: as many as fit the context.
        min_tokens: minimum number of tokens before the end of text or a stop may end the output.
        logprobs: log-probabilities of this many top tokens; -1 is the whole vocabulary.
        prompt_logprobs: the same for the tokens of the prompt.
        prompt_logprob_token_ids: log-probabilities of these ids at positions of the prompt, for distillation: ids of all
            positions, or one list (or row of an integer array) for each position behind `prompt_logprob_start`; -1 is no id.
        prompt_logprob_start: position of the prompt's token behind which `prompt_logprob_token_ids` begin; None: 0.
        logprob_token_ids: log-probabilities of exactly these ids instead of the top ones; `logprobs` becomes their number.
        flat_logprobs: log-probabilities are FlatLogprobs, flat lists of all positions, instead of one dict each; for programs.
        detokenize: make text; if False, outputs have ids only.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: put spaces between special tokens that are shown.
        include_stop_str_in_output: keep the stop string in the text.
        output_kind: the content of each RequestOutput.
        stream_interval: minimum number of new tokens per output; the first and the last output may have fewer.
        structured_outputs: the constraint of the output.
        logit_bias: token id -> value that is added to its logit; clipped to [-100, 100].
        allowed_token_ids: the only ids that may be generated.
        bad_words: texts that are never generated.
        truncate_prompt_tokens: keep this many tokens at the end of the prompt; -1: as many as fit besides max_tokens.
        skip_reading_prefix_cache: compute the whole prompt; None: only if log-probabilities of the prompt are requested.
        thinking_token_budget: maximum number of reasoning tokens; after these the reasoning is ended. -1 or None: no limit.
            Only for models with a reasoning parser.
        repetition_detection: ends outputs that repeat themselves.
        extra_args: values for custom logits processors, as JSON has them; refused if the server has none.
        guided_decoding: older name of `structured_outputs`.

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
    prompt_logprob_token_ids: ScoreIds | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    truncate_prompt_tokens: int | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    extra_args: dict[str, Any] | None = None

    def __post_init__(self, *foreign: Any) -> None:
        *others, guided_decoding = foreign
        check_foreign(tuple(others))
        if guided_decoding is not None:
            if self.structured_outputs is not None:
                raise wrong("guided_decoding", "guided_decoding is structured_outputs' older name: give one of them.")
            self.structured_outputs = guided_decoding
        self._check_counts()
        self._check_scores()
        self._check_ranges()
        self._check_lists()
        self._check_the_rest()
        if self.seed == -1:
            self.seed = None
        if self.logprob_token_ids:
            self.logprobs = len(self.logprob_token_ids)
        if self.is_greedy:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        elif self.temperature < _COLDEST:
            # Smaller temperatures overflow float32 logits.
            self.temperature = _COLDEST

    @property
    def is_greedy(self) -> bool:
        """Whether sampling always takes the most likely token."""
        return self.temperature < GREEDY_BELOW

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, in their given order."""
        return tuple(strings("stop", self.stop))  # a program may have set `stop` after the construction

    @classmethod
    def from_optional(cls, **fields: Any) -> Self:
        """Return parameters; a field that is None has its default, except max_tokens, where None has a meaning."""
        return cls(**{name: value for name, value in fields.items() if value is not None or name == "max_tokens"})

    def clone(self) -> Self:
        """Return an independent copy."""
        made = object.__new__(type(self))
        # Most values are plain: testing their type here takes a tenth of the time of deepcopy.
        made.__dict__ = {
            name: value if type(value) in _IMMUTABLE else copy.deepcopy(value) for name, value in vars(self).items()
        }
        return made

    def _check_counts(self) -> None:
        for name in ("n", "top_k", "min_tokens"):
            check_integer(name, getattr(self, name))
        for name in ("max_tokens", "logprobs", "prompt_logprobs", "seed", "stream_interval", "truncate_prompt_tokens"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        if self.n < 1:
            raise wrong("n", f"n must be at least 1, got {self.n}.")
        if self.n > _MAX_N:
            raise wrong("n", f"n must be at most {_MAX_N}, got {self.n}.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise wrong("max_tokens", f"max_tokens must be at least 1, got {self.max_tokens}.")
        if self.min_tokens < 0:
            raise wrong("min_tokens", f"min_tokens must be greater than or equal to 0, got {self.min_tokens}.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            text = f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, got {self.min_tokens}."
            raise wrong("min_tokens", text)
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(self, name) or 0) < -1:
                raise wrong(name, f"{name} must be non-negative or -1, got {getattr(self, name)}.")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise wrong("seed", f"seed must fit 64 bits, got {self.seed}.")
        if self.stream_interval is not None and self.stream_interval < 1:
            raise wrong("stream_interval", f"stream_interval must be at least 1, got {self.stream_interval}.")
        truncate = self.truncate_prompt_tokens
        if truncate is not None and (truncate < -1 or truncate == 0):
            raise wrong("truncate_prompt_tokens", f"truncate_prompt_tokens must be -1 or at least 1, got {truncate}.")

    def _check_scores(self) -> None:
        if self.prompt_logprob_token_ids is not None:
            self.prompt_logprob_token_ids = score_ids(self.prompt_logprob_token_ids)
        if (start := self.prompt_logprob_start) is not None:
            check_integer("prompt_logprob_start", start)
            if start < 0:
                raise wrong("prompt_logprob_start", f"prompt_logprob_start must be non-negative, got {start}.")
            if self.prompt_logprob_token_ids is None:
                raise wrong("prompt_logprob_start", "prompt_logprob_start needs prompt_logprob_token_ids.")

    @property
    def needs_whole_prompt(self) -> str:
        """The name of the parameter that asks for values at each token of the prompt; empty: there is none."""
        if self.prompt_logprobs is not None:
            return "prompt_logprobs"
        return "" if self.prompt_logprob_token_ids is None else "prompt_logprob_token_ids"

    def _check_ranges(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= check_number(name, getattr(self, name)) <= 2.0:
                raise wrong(name, f"{name} must be in [-2, 2], got {getattr(self, name)}.")
        if not math.isfinite(check_number("repetition_penalty", self.repetition_penalty)):
            raise wrong("repetition_penalty", f"repetition_penalty must be a finite number, got {self.repetition_penalty}.")
        if self.repetition_penalty <= 0.0:
            raise wrong("repetition_penalty", f"repetition_penalty must be greater than zero, got {self.repetition_penalty}.")
        if check_number("temperature", self.temperature) < 0.0:
            raise wrong("temperature", f"temperature must be non-negative, got {self.temperature}.")
        if not self.temperature <= 2.0:
            raise wrong("temperature", f"temperature must be in [0, 2], got {self.temperature}.")
        if not 0.0 < check_number("top_p", self.top_p) <= 1.0:
            raise wrong("top_p", f"top_p must be in (0, 1], got {self.top_p}.")
        if self.top_k < -1:
            raise wrong("top_k", f"top_k must be 0 (disable), or at least 1, got {self.top_k}.")
        if not 0.0 <= check_number("min_p", self.min_p) <= 1.0:
            raise wrong("min_p", f"min_p must be in [0, 1], got {self.min_p}.")

    def _check_lists(self) -> None:
        self.stop = strings("stop", self.stop)
        if self.stop and not self.detokenize:
            text = "stop strings are only supported when detokenize is True. Set detokenize=True to use stop."
            raise wrong("stop", text)
        self.bad_words = strings("bad_words", self.bad_words)
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            ids = getattr(self, name)
            if ids is not None:
                setattr(self, name, token_ids(name, ids))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise wrong("allowed_token_ids", "allowed_token_ids is not None and empty!")
        if self.logprob_token_ids is not None and len(self.logprob_token_ids) > _MAX_LOGPROB_IDS:
            text = f"logprob_token_ids may hold at most {_MAX_LOGPROB_IDS} ids, got {len(self.logprob_token_ids)}."
            raise wrong("logprob_token_ids", text)
        if self.logit_bias is not None:
            self.logit_bias = biases("logit_bias", self.logit_bias)

    def _check_the_rest(self) -> None:
        for name in ("ignore_eos", "flat_logprobs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens"):
            check_flag(name, getattr(self, name))
        check_flag("include_stop_str_in_output", self.include_stop_str_in_output)
        if self.skip_reading_prefix_cache is not None:
            check_flag("skip_reading_prefix_cache", self.skip_reading_prefix_cache)
            if (name := self.needs_whole_prompt) and not self.skip_reading_prefix_cache:
                # Tokens from the prefix cache are not computed, and have no log-probabilities.
                text = f"skip_reading_prefix_cache must not be False with {name}: leave it out or set it to True."
                raise wrong("skip_reading_prefix_cache", text)
        self.output_kind = member_of("output_kind", RequestOutputKind, self.output_kind)
        budget = self.thinking_token_budget
        if budget is not None:
            check_integer("thinking_token_budget", budget)
            if budget < -1:
                raise wrong("thinking_token_budget", f"thinking_token_budget must be non-negative or -1, got {budget}.")
            # At the maximum it has no effect, and fits the message.
            self.thinking_token_budget = None if budget == -1 else min(budget, _MAX_COUNT)
        for name, kind in (
            ("structured_outputs", StructuredOutputsParams),
            ("repetition_detection", RepetitionDetection),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise wrong(name, f"{name} must be {kind.__name__}, got {value!r}.")
        if self.extra_args is not None:
            check_extra_args(self.extra_args)
