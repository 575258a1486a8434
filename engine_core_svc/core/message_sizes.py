"""Message sizes: the bytes that a request adds to a step's plan and result, and the limits of one step.

A message above max_message_bytes ends the Execute stream, and every request starts over. Sizes are measured once, at
admission, which refuses a request that fits no message; the scheduler divides requests that do not fit together over several
steps (scheduler/message_budget.py). Knows bytes; knows no messages.
"""

from dataclasses import dataclass, field

from tetrad.services.message_size import BATCH_BYTES, DEFAULT_MAX_MESSAGE_BYTES

_TOKEN_BYTES = 5
"""Of each token in the plan that describes its request: its id, and its share of the smallest block's columns."""
_BLOCK_BYTES = 20
"""Of each block in that plan: its place in the block table, a copy to host memory and one back."""


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Bytes that a request adds to messages.

    Attributes:
        params_bytes: its sampling parameters, in the plan that describes it.
        params_id: of these parameters; requests that share them have the same.
        other_bytes: its id and its trace headers, in that plan.
        logprob_bytes: log-probabilities of one sampled token, in a result. 0: it asks for none.
        prompt_logprob_bytes: log-probabilities of one token of its prompt, in a result. 0: it asks for none.
        mask_bytes: its mask, in a plan where it samples. 0: it is not constrained.
        answer_bytes: what a pooling request is answered with, for all tokens of its prompt at once. 0: for one of them.
        is_light: its steps bring neither log-probabilities nor masks nor answers of many tokens. Computed once: the scheduler
            reads it at each step.
    """

    params_bytes: int = 0
    params_id: int = 0
    other_bytes: int = 0
    logprob_bytes: int = 0
    prompt_logprob_bytes: int = 0
    mask_bytes: int = 0
    answer_bytes: int = 0
    is_light: bool = field(init=False)

    def __post_init__(self) -> None:
        """Compute `is_light`."""
        object.__setattr__(
            self, "is_light", not (self.logprob_bytes or self.prompt_logprob_bytes or self.mask_bytes or self.answer_bytes)
        )

    def described_bytes(self, num_tokens: int, block_size: int, num_groups: int = 1) -> int:
        """Return the bytes of the request in the plan that describes it, parameters aside, at so many tokens.

        Args:
            num_tokens: that it has then.
            block_size: tokens per KV block.
            num_groups: block tables.
        """
        return self.other_bytes + _TOKEN_BYTES * num_tokens + _BLOCK_BYTES * num_groups * (num_tokens // block_size + 1)


NO_SIZES = MessageSizes()


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Most bytes in one step. What is left of a message is for columns of some bytes a request.

    Attributes:
        described_bytes: requests that the worker does not know, in the plan.
        params_bytes: their sampling parameters; more only of one request alone. The worker reads them entry by entry.
        mask_bytes: masks of constrained requests, in the plan.
        logprob_bytes: log-probabilities that a step computes; more only of one position alone.
        position_bytes: log-probabilities of one position.
        prompt_logprob_bytes: log-probabilities of prompts that a step completes, or what these are answered with, in the
            result.
    """

    described_bytes: int
    params_bytes: int
    mask_bytes: int
    logprob_bytes: int
    position_bytes: int
    prompt_logprob_bytes: int

    @classmethod
    def of(cls, max_message_bytes: int) -> "MessageLimits":
        """Return the shares of a message."""
        eighth = max_message_bytes // 8
        return cls(
            described_bytes=3 * eighth,
            params_bytes=min(BATCH_BYTES, eighth),
            mask_bytes=4 * eighth,
            logprob_bytes=min(BATCH_BYTES // 2, eighth),
            position_bytes=eighth,
            prompt_logprob_bytes=6 * eighth,
        )


DEFAULT_LIMITS = MessageLimits.of(DEFAULT_MAX_MESSAGE_BYTES)
