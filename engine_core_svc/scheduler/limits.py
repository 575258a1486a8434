"""Limits: the largest step, and the order in which requests are served."""

from dataclasses import dataclass

from tetrad.engine_core_svc.core.message_sizes import DEFAULT_LIMITS, MessageLimits
from tetrad.engine_core_svc.scheduler.policy import PolicyName


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The limits of one step.

    Attributes:
        max_num_seqs: maximum number of requests that run at the same time.
        max_num_batched_tokens: maximum number of tokens computed in one step.
        long_prefill_token_threshold: maximum number of tokens of one request in a step with other requests; 0: no such limit.
        enable_chunked_prefill: split prompts over steps; otherwise a prompt waits for a step that has room for all of it.
        policy: "fcfs" or "priority" (larger priority is more urgent, and preempts).
        messages: maximum bytes of the plan and of its result.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    policy: PolicyName = "fcfs"
    messages: MessageLimits = DEFAULT_LIMITS
