"""NewRequest: a caller's request before any check. Made by AsyncLLM, consumed by the intake."""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self, TypedDict

from tetrad.frontend.media.speech import SpeechRules
from tetrad.frontend.request.admission import Ticket
from tetrad.frontend.request.kv_transfer import KV_TRANSFER_PARAMS, KvTransfer
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.sampling_values import check_integer, check_number, check_text
from tetrad.services.errors import InvalidRequest

_MAX_I32 = 2**31 - 1
_MAX_UNIX_S = 10_000_000_000  # in the year 2286; as nanoseconds it fits 64 bits


class RequestOptions(TypedDict, total=False):
    """The options of a request.

    Attributes:
        priority: a larger number is more urgent.
        lora_request: the adapter to run with.
        add_special_tokens: whether the tokenizer adds BOS and similar tokens to text.
        truncate_prompt_tokens: the number of prompt tokens to keep; -1: as many as fit besides max_tokens.
        truncation_side: the end that is dropped, "left" or "right".
        cache_salt: separates the prefix caches of different tenants.
        data_parallel_rank: the engine that must run the request; None: any.
        max_logprobs: replaces the server's limit, for a caller that limits its clients in another way.
        trace_headers: W3C traceparent and tracestate of a program's own span. Calls over HTTP and gRPC have their own.
        prediction: the expected output text: where it matches, the output is faster. Empty: none.
        reasoning_ended: whether a constraint holds from the first token, or only after the end of the reasoning. None: the
            prompt decides, if the server names a reasoning parser; else from the first token.
        ticket: the request's share of the limits, which its call has reserved; None: the request is admitted by itself.
        kv_transfer: what the engine core does with the prompt's KV blocks for another one; None: nothing. A program gives it
            as vLLM's do, in SamplingParams.extra_args["kv_transfer_params"].
        speech_rules: what a model of speech may write; None: anything.
        audio_positions: score when tokens are said, in place of their log-probabilities, among the first so many positions of
            the encoder's output; None: log-probabilities. It needs `prompt_logprob_token_ids` with one id.
    """

    priority: int
    lora_request: LoRARequest | None
    add_special_tokens: bool
    truncate_prompt_tokens: int | None
    truncation_side: str
    cache_salt: str
    data_parallel_rank: int | None
    max_logprobs: int | None
    trace_headers: Mapping[str, str] | None
    prediction: str
    reasoning_ended: bool | None
    ticket: Ticket | None
    kv_transfer: KvTransfer | None
    speech_rules: SpeechRules | None
    audio_positions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request with its options; RequestOptions documents these.

    Attributes:
        request_id: the caller's id; several requests may share one.
        prompt: text, token ids, TextPrompt or TokensPrompt.
        params: the sampling parameters.
        arrival_time: Unix seconds.
    """

    request_id: str
    prompt: PromptType
    params: SamplingParams
    priority: int = 0
    lora_request: LoRARequest | None = None
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "left"
    cache_salt: str = ""
    data_parallel_rank: int | None = None
    arrival_time: float = field(default_factory=time.time)
    max_logprobs: int | None = None
    trace_headers: Mapping[str, str] | None = None
    prediction: str = ""
    reasoning_ended: bool | None = None
    ticket: Ticket | None = None
    kv_transfer: KvTransfer | None = None
    speech_rules: SpeechRules | None = None
    audio_positions: int | None = None

    def with_transfer(self) -> Self:
        """Return the request with the KV transfer of its extra_args in `kv_transfer`; InvalidRequest for a wrong one."""
        given = self.params.extra_args
        if not given or KV_TRANSFER_PARAMS not in given:
            return self
        if self.kv_transfer is not None:
            text = f"{KV_TRANSFER_PARAMS} is given twice, also in extra_args; give it once."
            raise InvalidRequest(text, field=KV_TRANSFER_PARAMS)
        params = copy.copy(self.params)
        params.extra_args = {name: value for name, value in given.items() if name != KV_TRANSFER_PARAMS} or None
        return replace(self, params=params, kv_transfer=KvTransfer.of(given[KV_TRANSFER_PARAMS]))

    def check(self) -> None:
        """Raise for values that are invalid for every model, prompt and parameters."""
        check_identity(self.request_id, self.priority)
        if not isinstance(self.prediction, str):
            raise TypeError(f"prediction must be a string, empty for none, got {type(self.prediction).__name__}")
        check_text("prediction", self.prediction)
        check_trace_headers(self.trace_headers)
        if not 0 <= check_number("arrival_time", self.arrival_time) <= _MAX_UNIX_S:
            text = f"arrival_time must be Unix seconds in [0, {_MAX_UNIX_S}], got {self.arrival_time}."
            raise InvalidRequest(text, field="arrival_time")
        rank = self.data_parallel_rank
        if rank is not None:
            check_integer("data_parallel_rank", rank)
            if not 0 <= rank <= _MAX_I32:
                text = f"data_parallel_rank must be 0 or more and fit 32 bits, got {rank}."
                raise InvalidRequest(text, field="data_parallel_rank")


def check_trace_headers(headers: object) -> None:
    """Raise TypeError for headers that are no mapping of strings; malformed values are dropped later, as over HTTP."""
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise TypeError(f"trace_headers must map names to strings, got {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"trace_headers must map names to strings, got {name!r:.64}: {value!r:.64}")


def check_identity(request_id: object, priority: int) -> None:
    """Raise for an id that is not valid text (TypeError, InvalidRequest), and for a priority that is no integer of 32 bits."""
    if not isinstance(request_id, str):
        raise TypeError(f"request_id must be a string, got {type(request_id).__name__}")
    try:
        request_id.encode()
    except UnicodeEncodeError:
        text = f"request_id must be valid text without lone surrogates, got {request_id[:64]!r}."
        raise InvalidRequest(text, field="request_id") from None
    check_integer("priority", priority)
    if not -_MAX_I32 <= priority <= _MAX_I32:
        raise InvalidRequest(f"priority must fit 32 bits, got {priority}.", field="priority")
