"""StepBudget: what one plan may still compute.

Made and used by the scheduler, for one plan. Two purses: all tokens of the step, and those of prompts, which may be held to
less so that the requests that decode beside them are not kept waiting (pacer.py). Knows no requests.
"""


class StepBudget:
    """Tokens that are left.

    Args:
        num_tokens: of all requests together.
        prompt_tokens: of those that compute more than one token.
        chunk: of one request.
    """

    __slots__ = ("_chunk", "_prompt_tokens", "num_decodes", "num_tokens")

    def __init__(self, num_tokens: int, *, prompt_tokens: int, chunk: int) -> None:
        self.num_tokens = num_tokens
        self.num_decodes = 0
        self._prompt_tokens = prompt_tokens
        self._chunk = chunk

    def grant(self, num_wanted: int) -> int:
        """Return how many of the tokens that a request wants it may have; nothing is spent yet."""
        if num_wanted > 1:
            return min(num_wanted, self._chunk, self._prompt_tokens, self.num_tokens)
        return min(num_wanted, self.num_tokens)

    def spend(self, num_tokens: int) -> None:
        """Take what a request was granted."""
        self.num_tokens -= num_tokens
        if num_tokens > 1:
            self._prompt_tokens -= num_tokens
        else:
            self.num_decodes += 1
