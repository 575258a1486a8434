"""StepBudget: the remaining tokens of one plan.

Made and used by the scheduler, for one plan. Two limits: all tokens of the step, and those of prompts, which may be fewer to
protect the requests that decode beside them (prefill_throttle.py). Knows no requests; MessageBudget limits the bytes of the
step's messages.
"""

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.fan_out_throttle import StepShare
from tetrad.engine_core_svc.scheduler.message_budget import MessageBudget


class StepBudget:
    """The tokens and bytes that a plan may still use.

    Args:
        num_tokens: limit for all requests together.
        prompt_tokens: limit for all requests that compute more than one token.
        chunk: limit for one request.
        messages: remaining bytes of the step's messages.
        share: limit of rows for each client call.

    Attributes:
        num_prompt_tokens: tokens planned so far for requests that compute more than one.
    """

    __slots__ = ("_chunk", "_max_prompt_tokens", "messages", "num_prompt_tokens", "num_tokens", "share")

    def __init__(self, num_tokens: int, *, prompt_tokens: int, chunk: int, messages: MessageBudget, share: StepShare) -> None:
        self.num_tokens = num_tokens
        self.num_prompt_tokens = 0
        self._max_prompt_tokens = prompt_tokens
        self._chunk = chunk
        self.messages = messages
        self.share = share

    @property
    def tokens(self) -> tuple[int, int]:
        """The remaining tokens, and those planned for prompts; set them to an earlier value to undo what was taken since."""
        return self.num_tokens, self.num_prompt_tokens

    @tokens.setter
    def tokens(self, earlier: tuple[int, int]) -> None:
        self.num_tokens, self.num_prompt_tokens = earlier

    def take(self, num_wanted: int) -> int:
        """Spend and return the tokens that a request may compute, at most `num_wanted`; 0 if none are left for it."""
        num_tokens = min(num_wanted, self.num_tokens)
        if num_wanted > 1:
            num_tokens = min(num_tokens, self._chunk, max(self._max_prompt_tokens - self.num_prompt_tokens, 0))
            self.num_prompt_tokens += num_tokens
        self.num_tokens -= num_tokens
        return num_tokens

    def give_back(self, num_wanted: int, num_tokens: int) -> None:
        """Return `num_tokens` of those that `take(num_wanted)` has spent; a negative number spends more."""
        if num_wanted > 1:
            self.num_prompt_tokens -= num_tokens
        self.num_tokens += num_tokens

    def most_drafts(self, request: Request, num_drafts: int) -> int:
        """Return how many of a request's drafts the remaining tokens and bytes allow."""
        return self.messages.most_drafts(request, min(num_drafts, self.num_tokens))

    def verify(self, request: Request, num_drafts: int) -> None:
        """Spend the tokens and bytes of these drafts."""
        self.num_tokens -= num_drafts
        self.messages.verify(request, num_drafts)
