"""Message sizes: the bytes that a request adds to a step's plan and result, and the limits of one step.

A message above max_message_bytes ends the Execute stream, and every request starts over. Sizes are measured once, at
admission, which refuses a request that fits no message; the scheduler divides requests that do not fit together over several
steps (scheduler/budget.py). Knows bytes; knows no messages.
"""

from dataclasses import dataclass, field

from tetrad.services.message_size import BATCH_BYTES, DEFAULT_MAX_MESSAGE_BYTES

_TOKEN_BYTES = 5
"""Bytes of each token in the plan that describes its request: its id, and its share of the smallest block's columns."""
_BLOCK_BYTES = 20
"""Bytes of each block in that plan: its place in the block table, a copy to host memory and one back."""


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Bytes that a request adds to messages.

    Attributes:
        params_bytes: bytes of its sampling parameters, in the plan that describes it.
        params_id: identity of these parameters' object; equal for requests that share them.
        other_bytes: bytes of its id and its trace headers, in that plan.
        logprob_bytes: bytes of the log-probabilities of one sampled token, in a result. 0: not requested.
        prompt_logprob_bytes: bytes of the log-probabilities of one token of its prompt, in a result. 0: not requested.
        mask_bytes: bytes of its mask, in a plan in which it samples. 0: it is not constrained.
        answer_bytes: bytes of a pooling request's answer for all tokens of its prompt. 0: the answer is for one token.
        has_media: whether its prompt has media, which messages of their own contain.
        is_light: whether its steps have no log-probabilities, no masks, no answers for many tokens and no media. Computed once,
            since the scheduler reads it at each step.
    """

    params_bytes: int = 0
    params_id: int = 0
    other_bytes: int = 0
    logprob_bytes: int = 0
    prompt_logprob_bytes: int = 0
    mask_bytes: int = 0
    answer_bytes: int = 0
    has_media: bool = False
    is_light: bool = field(init=False)

    def __post_init__(self) -> None:
        """Compute `is_light`."""
        is_heavy = self.logprob_bytes or self.prompt_logprob_bytes or self.mask_bytes or self.answer_bytes or self.has_media
        object.__setattr__(self, "is_light", not is_heavy)

    def described_bytes(self, num_tokens: int, block_size: int, num_groups: int = 1) -> int:
        """Return the bytes of the request in the plan that describes it, without its parameters.

        Args:
            num_tokens: number of tokens that it has then.
            block_size: tokens per KV block.
            num_groups: number of block tables.
        """
        return self.other_bytes + _TOKEN_BYTES * num_tokens + _BLOCK_BYTES * num_groups * (num_tokens // block_size + 1)


NO_SIZES = MessageSizes()


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """The maximum bytes in one step. The rest of a message is for columns of a few bytes per request.

    Attributes:
        described_bytes: for requests that the worker does not know, in the plan.
        params_bytes: for the sampling parameters of these; a single request may exceed it. The worker reads them one by one.
        mask_bytes: for masks of constrained requests, in the plan.
        logprob_bytes: for log-probabilities that a step computes; a single position may exceed it.
        position_bytes: for log-probabilities of one position.
        prompt_logprob_bytes: for log-probabilities of prompts that a step completes, or answers for all their tokens, in the
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
        """Return the limits for messages of this maximum size."""
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
