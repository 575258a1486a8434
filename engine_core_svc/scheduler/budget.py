"""StepBudget: limits one plan of the scheduler: its tokens, the bytes of its messages, its rows.

Made and used by the scheduler, for one plan. Tokens have two limits: all tokens of the step, and those of prompts, which may
be fewer to protect the requests that decode beside them (prefill_throttle.py). Bytes are those of the plan and of its result
(core/message_sizes.py). Each of their limits admits the first request whatever its size, since admission has refused requests
that fit no message; so every request is planned when it is the first in order. Rows have a limit only if the model's layers
are on several stages of a pipeline (stage_filling.py); NoStages stands for a single stage.
"""

from collections.abc import Iterable
from typing import Protocol

from tetrad.engine_core_svc.core.message_sizes import MessageLimits
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.fan_out_throttle import StepShare


class MessageBudget:
    """The bytes that one plan has spent so far.

    Args:
        limits: see MessageLimits.
        block_size: tokens per KV block.
        num_groups: number of block tables of a request.
        shares_params: whether requests of one plan that share parameters send them once.
    """

    __slots__ = (
        "_block_size", "_described", "_limits", "_logprobs", "_masks", "_num_groups", "_params", "_prompts", "_shared",
        "_shares",
    )  # fmt: skip

    def __init__(self, limits: MessageLimits, block_size: int, num_groups: int, *, shares_params: bool) -> None:
        self._limits, self._block_size, self._num_groups, self._shares = limits, block_size, num_groups, shares_params
        self._described = self._params = self._masks = self._logprobs = self._prompts = 0
        self._shared: set[int] = set()

    def can_describe(self, request: Request) -> bool:
        """Return whether the plan has room for a request that the worker does not know."""
        if not self._described:
            return True
        params_bytes = self._params_bytes(request)
        described_bytes = params_bytes + self._described_bytes(request)
        is_light = not params_bytes or not self._params or self._params + params_bytes <= self._limits.params_bytes
        return is_light and self._described + described_bytes <= self._limits.described_bytes

    def describe(self, request: Request) -> None:
        """Spend the bytes that describe a request that the worker does not know."""
        params_bytes = self._params_bytes(request)
        self._params += params_bytes
        self._described += params_bytes + self._described_bytes(request)
        self._shared.add(request.sizes.params_id)

    def most_tokens(self, request: Request, start: int, num_tokens: int) -> int:
        """Return how many of a request's next tokens may be computed: all, or fewer so that their bytes fit.

        Args:
            request: the request; a light one does not need this call.
            start: position of the first of these tokens.
            num_tokens: number of tokens that it needs.
        """
        mask_bytes, answer_bytes = request.sizes.mask_bytes, request.sizes.answer_bytes
        if answer_bytes and self._prompts and self._prompts + answer_bytes > self._limits.prompt_logprob_bytes:
            return 0  # a later step has room; computing a part of the prompt before that gains nothing
        if request.sizes.prompt_logprob_bytes:
            num_tokens = self._most_of_prompt(request, start, num_tokens)
        if not num_tokens or not request.samples_at(start + num_tokens):
            return num_tokens
        has_mask = not self._masks or self._masks + mask_bytes <= self._limits.mask_bytes
        return num_tokens if has_mask and self._has_row(request, start, num_tokens) else num_tokens - 1

    def compute(self, request: Request, start: int, num_tokens: int) -> None:
        """Spend the bytes of these tokens. A light request does not need this call."""
        self._logprobs += _logprob_bytes(request, start, num_tokens)
        if request.samples_at(start + num_tokens):
            self._masks += request.sizes.mask_bytes
        if _ends_prompt(request, start, num_tokens):
            self._prompts += request.prompt_logprob_bytes + request.sizes.answer_bytes

    def most_drafts(self, request: Request, num_drafts: int) -> int:
        """Return how many of a request's drafts fit, with their masks and log-probabilities."""
        sizes, limits = request.sizes, self._limits
        if sizes.mask_bytes:
            num_drafts = min(num_drafts, (limits.mask_bytes - self._masks) // sizes.mask_bytes)
        if sizes.logprob_bytes:
            num_drafts = min(num_drafts, (limits.logprob_bytes - self._logprobs) // sizes.logprob_bytes)
        return max(num_drafts, 0)

    def verify(self, request: Request, num_drafts: int) -> None:
        """Spend the bytes of these drafts."""
        self._masks += num_drafts * request.sizes.mask_bytes
        self._logprobs += num_drafts * request.sizes.logprob_bytes

    def _has_row(self, request: Request, start: int, num_tokens: int) -> bool:
        """Return whether the log-probabilities of these tokens fit; the last of the tokens samples."""
        if not request.sizes.logprob_bytes or (num_tokens == 1 and not self._logprobs):
            return True
        return self._logprobs + _logprob_bytes(request, start, num_tokens) <= self._limits.logprob_bytes

    def _most_of_prompt(self, request: Request, start: int, num_tokens: int) -> int:
        """Return how many of these tokens fit with the prompt's log-probabilities, which the prompt's last token returns."""
        limits, position_bytes = self._limits, request.sizes.prompt_logprob_bytes
        is_full = self._prompts and self._prompts + request.prompt_logprob_bytes > limits.prompt_logprob_bytes
        if is_full and _ends_prompt(request, start, num_tokens):
            num_tokens = request.num_prompt_tokens - 1 - start
        room = (limits.logprob_bytes - self._logprobs) // position_bytes
        room = max(room, 0 if self._logprobs else 1)
        return num_tokens if room >= _num_positions(request, start, num_tokens) else room

    def _described_bytes(self, request: Request) -> int:
        return request.sizes.described_bytes(request.num_tokens, self._block_size, self._num_groups)

    def _params_bytes(self, request: Request) -> int:
        is_there = self._shares and request.sizes.params_id in self._shared
        return 0 if is_there else request.sizes.params_bytes


def _num_positions(request: Request, start: int, num_tokens: int) -> int:
    """Return how many of these tokens precede a prompt token, whose log-probability their hidden states give."""
    return max(0, min(start + num_tokens, request.num_prompt_tokens - 1) - start)


def _ends_prompt(request: Request, start: int, num_tokens: int) -> bool:
    return start < request.num_prompt_tokens <= start + num_tokens


def _logprob_bytes(request: Request, start: int, num_tokens: int) -> int:
    sizes = request.sizes
    of_prompt = sizes.prompt_logprob_bytes and sizes.prompt_logprob_bytes * _num_positions(request, start, num_tokens)
    return of_prompt + (sizes.logprob_bytes if request.samples_at(start + num_tokens) else 0)


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
