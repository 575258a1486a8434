"""StepBudget: the tokens that one plan may still compute.

Made and used by the scheduler, for one plan. Two purses: all tokens of the step, and those of prompts, which may be held to
fewer for the sake of the requests that decode beside them (prefill_throttle.py). Knows no requests; the bytes that they add to
the step's messages are in a budget beside it.
"""

from tetrad.engine_core_svc.scheduler.message_budget import MessageBudget


class StepBudget:
    """Tokens that are left.

    Args:
        num_tokens: of all requests together.
        prompt_tokens: of those that want more than one.
        chunk: of one request.
        messages: bytes that are left.

    Attributes:
        num_prompt_tokens: that were spent on those.
    """

    __slots__ = ("_chunk", "_max_prompt_tokens", "messages", "num_prompt_tokens", "num_tokens")

    def __init__(self, num_tokens: int, *, prompt_tokens: int, chunk: int, messages: MessageBudget) -> None:
        self.num_tokens = num_tokens
        self.num_prompt_tokens = 0
        self._max_prompt_tokens = prompt_tokens
        self._chunk = chunk
        self.messages = messages

    def take(self, num_wanted: int) -> int:
        """Spend what a request that wants so many tokens may have, and return it. Whoever cannot use it plans no further."""
        num_tokens = min(num_wanted, self.num_tokens)
        if num_wanted > 1:
            num_tokens = min(num_tokens, self._chunk, self._max_prompt_tokens - self.num_prompt_tokens)
            self.num_prompt_tokens += num_tokens
        self.num_tokens -= num_tokens
        return num_tokens
