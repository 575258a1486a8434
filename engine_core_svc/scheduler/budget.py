"""StepBudget: what one plan may still use: tokens, bytes of messages, rows.

Made and used by the scheduler, for one plan. Tokens have two limits: all tokens of the step, and those of prompts, which may
be fewer to protect the requests that decode beside them (prefill_throttle.py). MessageBudget limits the bytes of the step's
messages. Rows have a limit only if the model's layers are on several stages of a pipeline (stage_filling.py).
"""

from collections.abc import Iterable
from typing import Protocol

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


class Rows(Protocol):
    """The rows that one plan may have: requests that sample a token."""

    def has_room(self, request: Request) -> bool:
        """Return whether the plan may have a row of a running request."""

    @property
    def admits(self) -> bool:
        """Whether the plan may have a row of a waiting request."""

    def spend(self, request: Request) -> None:
        """Count the row of a request that was planned."""


class StageFillings(Protocol):
    """The interface for the scheduler."""

    num_stages: int

    def rows(self, running: Iterable[Request], num_waiting: int, max_num_seqs: int) -> Rows:
        """Return the rows of the next plan."""

    def note_planned(self, step_id: int) -> None:
        """Note that a step was planned."""

    def note_returned(self, step_id: int) -> None:
        """Note that the result of a step has arrived."""

    def forget_steps(self) -> None:
        """Forget all steps in flight: the worker is lost."""


class AllRows:
    """Limits no plan."""

    admits = True

    def has_room(self, request: Request) -> bool:  # noqa: ARG002 - of the protocol
        """Return True."""
        return True

    def spend(self, request: Request) -> None:
        """Do nothing."""


ALL_ROWS = AllRows()


class NoStages:
    """The strategy for a single stage: every plan may contain all requests."""

    num_stages = 1

    def rows(self, running: Iterable[Request], num_waiting: int, max_num_seqs: int) -> Rows:  # noqa: ARG002 - of the protocol
        """Return rows without a limit."""
        return ALL_ROWS

    def note_planned(self, step_id: int) -> None:
        """Do nothing."""

    def note_returned(self, step_id: int) -> None:
        """Do nothing."""

    def forget_steps(self) -> None:
        """Do nothing."""
