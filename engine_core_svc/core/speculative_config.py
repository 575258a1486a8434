"""SpeculativeConfig: options for the proposal of drafts, under vLLM's names.

Read by the engine core's settings and by EngineArgs, so that a wrong value is one error before anything starts. Options that
vLLM has and Tetrad does not are refused by name.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tetrad.services.errors import InvalidRequest

_FIELD = "speculative_config"
_NEEDS_MODEL = ("draft_model", "eagle3")
_ON_WORKER = (*_NEEDS_MODEL, "mtp")
_METHODS = ("ngram", "suffix", *_ON_WORKER)
_MODEL_KEYS = frozenset(
    (
        "revision", "code_revision", "quantization", "max_model_len", "draft_tensor_parallel_size", "kv_cache_dtype",
        "tensor_parallel_size", "parallel_drafting", "draft_sample_method", "use_heterogeneous_vocab", "attention_backend",
        "moe_backend", "disable_padded_drafter_batch", "disable_eagle_block_drop", "rejection_sample_method", "enforce_eager",
        "enable_adaptive_verification", "draft_load_config", "posterior_alpha", "posterior_threshold",
    )
)  # fmt: skip
"""vLLM's options for a draft model, which are refused."""
_OF_TEXTS = ("prompt_lookup_", "suffix_decoding_")
"""Prefixes of the options of methods that find drafts in texts."""
_MAX_TOKENS = 32
_DEFAULT_NGRAM = 5


class SpeculativeConfig(BaseModel):
    """The options of speculative decoding.

    Attributes:
        method: source of the drafts. "ngram": the tokens that followed the longest n-gram at the text's end, at its earliest
            place; "suffix": the tokens that most often followed the longest repeated end of the text; "draft_model": samples of
            another model; "eagle3": samples of an EAGLE-3 head; "mtp": samples of the model's own multi-token layer.
        model: for "draft_model" and "eagle3": a built-in name, a Hugging Face id, or a directory or .gguf file on the worker's
            machine.
        num_speculative_tokens: maximum number of drafts of a request in a step; measured acceptance and times decide how many.
        prompt_lookup_min, prompt_lookup_max: lengths of the n-grams, in tokens. Both unset: 5; one unset: equal to the other.
        suffix_decoding_max_tree_depth: maximum number of tokens of the text's end that are matched.
        suffix_decoding_max_spec_factor: maximum number of drafts, relative to the length of the match in tokens.
        suffix_decoding_min_token_prob: minimum share of the places at which a draft followed, 0 to 1; a rarer token ends the
            proposal.
        suffix_decoding_max_cached_requests: number of finished outputs that later requests of the same cache_salt search, too;
            0: none are kept.
        num_speculative_tokens_per_batch_size: (first, last, maximum number of drafts) for ranges of the number of decoding
            requests; a number between two ranges uses the lower one.
        disable_by_batch_size: number of decoding requests from which on there are no drafts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["ngram", "suffix", "draft_model", "eagle3", "mtp"]
    model: str | None = Field(None, min_length=1)
    num_speculative_tokens: int = Field(ge=1, le=_MAX_TOKENS)
    prompt_lookup_min: int | None = Field(None, ge=1)
    prompt_lookup_max: int | None = Field(None, ge=1)
    suffix_decoding_max_tree_depth: int = Field(24, ge=2, le=256)
    suffix_decoding_max_spec_factor: float = Field(1.0, gt=0)
    suffix_decoding_min_token_prob: float = Field(0.1, ge=0, le=1)
    suffix_decoding_max_cached_requests: int = Field(0, ge=0)
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    disable_by_batch_size: int | None = Field(None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _default_length(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("method") == "suffix" and values.get("num_speculative_tokens") is None:
            values["num_speculative_tokens"] = _length_of(values.get("suffix_decoding_max_tree_depth", 24))
        return values

    @field_validator("num_speculative_tokens_per_batch_size")
    @classmethod
    def _in_order(cls, ranges: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
        end = 0
        for first, last, num_tokens in ranges:
            if (first != 1 and not end) or first <= end or last < first or num_tokens < 0:
                raise ValueError(
                    "must be ranges [first, last, tokens] in order, without overlap, of which the first begins at 1"
                )
            end = last
        return ranges

    @model_validator(mode="after")
    def _model_fits(self) -> Self:
        if self.method in _NEEDS_MODEL and self.model is None:
            raise ValueError(f"method {self.method!r} needs a model")
        if self.method not in _NEEDS_MODEL and self.model is not None:
            where = "has its layer in the target's files" if self.is_on_worker else "finds drafts in texts"
            raise ValueError(f"method {self.method!r} {where} and takes no model")
        if self.method != "suffix" and self.suffix_decoding_max_cached_requests:
            raise ValueError(f"method {self.method!r} has no use for suffix_decoding_max_cached_requests")
        of_texts = [name for name in self.model_fields_set if name.startswith(_OF_TEXTS)]
        if self.is_on_worker and of_texts:
            raise ValueError(f"method {self.method!r} has no use for {min(of_texts)}")
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        shortest, longest = self.ngram_lengths
        if shortest > longest:
            raise ValueError(f"prompt_lookup_min {shortest} is larger than prompt_lookup_max {longest}")
        return self

    @property
    def is_on_worker(self) -> bool:
        """Whether the worker proposes the drafts, by a second model or a head of the first one."""
        return self.method in _ON_WORKER

    @property
    def ngram_lengths(self) -> tuple[int, int]:
        """The lengths of the shortest and the longest n-gram."""
        lengths = [length for length in (self.prompt_lookup_min, self.prompt_lookup_max) if length is not None]
        return (lengths[0], lengths[-1]) if lengths else (_DEFAULT_NGRAM, _DEFAULT_NGRAM)

    def most_tokens(self, num_requests: int) -> int:
        """Return the maximum number of drafts of a request in a step of `num_requests` decoding requests."""
        if self.disable_by_batch_size is not None and num_requests >= self.disable_by_batch_size:
            return 0
        most = self.num_speculative_tokens
        for first, _, num_tokens in self.num_speculative_tokens_per_batch_size:
            if num_requests >= first:
                most = min(num_tokens, self.num_speculative_tokens)
        return most


def read_speculative_config(value: str | Mapping[str, Any]) -> SpeculativeConfig | None:
    """Return the config in a JSON object or a mapping; None if it is empty. Raises InvalidRequest, which names the problem."""
    values = _parse(value) if isinstance(value, str) else value
    if not isinstance(values, Mapping):
        raise InvalidRequest(f"{_FIELD} must be a JSON object, got {type(values).__name__}.", field=_FIELD)
    if not values:
        return None
    given = {name: each for name, each in values.items() if each is not None}
    _check_supported(given)
    try:
        return SpeculativeConfig.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join([_FIELD, *(str(part) for part in problem["loc"][:1])])
        shown = f", got {problem['input']!r}" if problem["loc"] and problem["type"] != "missing" else ""
        raise InvalidRequest(f"{place}: {problem['msg']}{shown}.", field=_FIELD) from error


def _length_of(depth: Any) -> int:
    """Return the number of drafts for a depth of matches, which has not been checked yet."""
    try:
        return min(max(int(depth), 1), _MAX_TOKENS)
    except (TypeError, ValueError, OverflowError):
        return 1  # the check of the depth refuses it


def _parse(text: str) -> Any:
    if not text:
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{_FIELD} is not JSON: {error}.", field=_FIELD) from error


def _check_supported(values: Mapping[str, Any]) -> None:
    method = values.get("method")
    if method not in _METHODS:
        given = "no method" if method is None else f"{method!r}"
        raise InvalidRequest(f"{_FIELD}.method: {given} is given; use one of {', '.join(_METHODS)}.", field=_FIELD)
    if of_model := sorted(values.keys() & _MODEL_KEYS):
        text = f"{_FIELD}.{of_model[0]} is not supported; a draft model runs as it is stored, with the target's limits."
        raise InvalidRequest(text, field=_FIELD)
    if unknown := sorted(values.keys() - SpeculativeConfig.model_fields.keys()):
        known = ", ".join(SpeculativeConfig.model_fields)
        raise InvalidRequest(f"{_FIELD} has no {unknown[0]!r}; it has {known}.", field=_FIELD)
