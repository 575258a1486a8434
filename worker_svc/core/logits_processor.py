"""Logits processors of other authors: the class that they derive from, and the values that their objects get.

Authors import it as tetrad.logits_processors. It knows no protobuf and imports no torch, so a program can define a processor
without the worker's packages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RequestLogitsProcessor = Callable[..., "torch.Tensor"]
"""Function (output_token_ids, logits) -> logits, or (prompt_token_ids, output_token_ids, logits) -> logits.

Token ids are lists of int; logits are [vocab_size] float32 on the worker's device. The function may change them in place and
return them, or return a new tensor.
"""


@dataclass(frozen=True, slots=True)
class RequestParams:
    """The parameters of one request, with the names of SamplingParams.

    Attributes:
        extra_args: the request's extra_args (over HTTP: vllm_xargs); None: the request has none. Numbers without a fraction are
            int.
    """

    extra_args: Mapping[str, Any] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: Sequence[int] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a processor may know of the model and the worker's limits.

    Attributes:
        vocab_size: number of logits.
        max_model_len: maximum number of tokens of prompt plus output.
    """

    vocab_size: int
    max_model_len: int

    def get_vocab_size(self) -> int:
        """Return `vocab_size`."""
        return self.vocab_size


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The largest number of requests that run at a time."""

    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """The part of vLLM's VllmConfig that a processor gets as `vllm_config`."""

    model_config: ModelConfig
    scheduler_config: SchedulerConfig


class AdapterLogitsProcessor:
    """Base of logits processors, shaped as vLLM's class of this name: it changes the logits of single requests.

    The worker imports the class at its start and makes one object of it for each model that it serves. For each request,
    `new_req_logits_processor` returns the function that changes its logits, or None.

    A processor must be a pure function of the prompt, the output and the parameters. The worker calls it for a request alone or
    beside others, again for a request that was preempted or whose worker was lost, and for drafts that are rejected later; all
    of this yields the same tokens only if equal arguments yield equal logits. So it must keep no state between calls.

    An error of a processor fails the request for which it was called, and no other one.

    Args:
        vllm_config: a ProcessorConfig: `model_config.vocab_size`, `model_config.max_model_len` and
            `scheduler_config.max_num_seqs`.
        device: the torch.device of the logits.
        is_pin_memory: whether host memory should be pinned to be copied to the device.
    """

    def __init__(self, vllm_config: ProcessorConfig, device: "torch.device", is_pin_memory: bool) -> None:
        """Keep nothing; a derived class may prepare tables for all requests."""

    @classmethod
    def validate_params(cls, params: RequestParams) -> None:
        """Raise ValueError if a request's parameters, usually its extra_args, are wrong for this processor."""

    def is_argmax_invariant(self) -> bool:
        """Return False: processors run before the temperature. A class that returns True is refused at the start."""
        return False

    def new_req_logits_processor(self, params: RequestParams) -> RequestLogitsProcessor | None:
        """Return the function that changes a request's logits; None if the request does not concern this processor."""
        raise NotImplementedError
