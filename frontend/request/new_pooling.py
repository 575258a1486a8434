"""NewPooling: a pooling request before any check: its inputs, and the parameters of each.

Made by AsyncLLM, consumed by the pooling intake.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.prompts import PromptType


class PoolingOptions(TypedDict, total=False):
    """The options of a pooling request.

    Attributes:
        priority: a larger value is more urgent.
        add_special_tokens: let the tokenizer add [CLS] and the like to texts.
        truncate_prompt_tokens: maximum number of tokens of each prompt to keep; -1: the length of the context. None: all.
        truncation_side: which end is dropped, "left" or "right".
        cache_salt: separates prefix caches of different tenants.
        trace_headers: W3C traceparent and tracestate of a program's own span.
        lora_requests: the adapter of each prompt, or None; empty: no prompt has one.
        on_answer: called whenever a prompt has its answer, which may be before the other prompts have theirs.
    """

    priority: int
    add_special_tokens: bool
    truncate_prompt_tokens: int | None
    truncation_side: str
    cache_salt: str
    trace_headers: Mapping[str, str] | None
    lora_requests: Sequence[LoRARequest | None]
    on_answer: Callable[[], None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPooling:
    """A pooling request with its options; PoolingOptions documents these.

    Attributes:
        request_id: the caller's id.
        prompts: the inputs.
        params: the pooling parameters of each input.
        arrival_time: wall clock, seconds.
    """

    request_id: str
    prompts: Sequence[PromptType]
    params: Sequence[PoolingParams]
    arrival_time: float
    priority: int = 0
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "right"
    cache_salt: str = ""
    trace_headers: Mapping[str, str] | None = field(default=None)
    lora_requests: Sequence[LoRARequest | None] = ()
    on_answer: Callable[[], None] | None = None
