"""FanOutThrottle: limits how many sequences of one client call a step computes while other calls have fewer.

Called by the scheduler for each plan and each result. On a device that takes longer for more rows, a call with hundreds of
sequences (n outputs, many prompts) would make every step of all others many times longer. Each call may have as many rows in a
step as the smallest call has; the further rows of larger calls share the time that others may be slowed down by, evenly. Step
times are measured, so a device that takes 256 rows as fast as 4 gets them all. A row left out keeps its blocks and its tokens.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol

from tetrad.engine_core_svc.core.request import CallId, Request
from tetrad.engine_core_svc.scheduler.call_counts import CallCounts
from tetrad.engine_core_svc.scheduler.row_times import RowTimes

_MIN_TOKENS = 8
"""Further rows go on even where a few of them take longer than that."""
_FIRST_TOKENS = 16
"""Of further rows, as long as it is not known what they take."""
_PROBE_EVERY = 16
"""Limited steps of which one has no further rows, so that it stays known what a step takes without them."""
_REMEMBERED_S = 1.0
"""Clients that wait for each answer have nothing unfinished for a moment; they count that long."""
_MAX_PROMPT = 64
"""Tokens of prompts in a step that tells what rows take; a step with more tells what prompts take."""


class StepShare:
    """What calls may have of one step.

    Args:
        num_first: rows of each call that are not further ones.
        most: rows of each call.
        max_further_tokens: of all further rows; the last one may have more of its prompt.

    Attributes:
        num_further_tokens: that the step computes.
    """

    __slots__ = ("_max_further_tokens", "_most", "_num_first", "_rows", "num_further_tokens")

    def __init__(self, num_first: int, most: int, max_further_tokens: int) -> None:
        self._num_first, self._most, self._max_further_tokens = num_first, most, max_further_tokens
        self._rows: dict[CallId, int] = {}
        self.num_further_tokens = 0

    def has_room(self, request: Request) -> bool:
        """Return whether the step may have one more row of a request's call."""
        rows = self._rows.get(request.call, 0)
        return rows < self._num_first or (rows < self._most and self.num_further_tokens < self._max_further_tokens)

    def spend(self, request: Request, num_tokens: int) -> None:
        """Count a row with so many tokens."""
        rows = self._rows[request.call] = self._rows.get(request.call, 0) + 1
        if rows > self._num_first:
            self.num_further_tokens += num_tokens


class NoShare(StepShare):
    """A step in which every call may have all rows."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0, 0, 0)

    def has_room(self, request: Request) -> bool:  # noqa: ARG002 - of the class
        """Return True."""
        return True

    def spend(self, request: Request, num_tokens: int) -> None:
        """Count nothing."""


NO_SHARE = NoShare()


class FanOutThrottle(Protocol):
    """The interface of a throttle for the scheduler."""

    def share(self, calls: CallCounts) -> StepShare:
        """Return the share of the next step that calls may have."""

    def note_planned(self, step_id: int, share: StepShare, num_prompt_tokens: int) -> None:
        """A step with so many tokens of prompts is on its way."""

    def note_returned(self, step_id: int) -> None:
        """A step is back."""

    def forget_steps(self) -> None:
        """The steps on their way will not come back."""


class NoFanOutThrottle:
    """Every step has all rows, as in vLLM."""

    def share(self, calls: CallCounts) -> StepShare:  # noqa: ARG002 - of the interface
        """As much as fits."""
        return NO_SHARE

    def note_planned(self, step_id: int, share: StepShare, num_prompt_tokens: int) -> None:
        """Not needed."""

    def note_returned(self, step_id: int) -> None:
        """Not needed."""

    def forget_steps(self) -> None:
        """Not needed."""


class MeasuringFanOutThrottle:
    """Holds a step to a multiple of what it takes without the further rows of large calls.

    Args:
        max_slowdown: that multiple, above 1.
        clock: monotonic seconds. What others wait for is the time between results, in which services work as well as devices.
    """

    def __init__(self, max_slowdown: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = max_slowdown - 1
        self._clock = clock
        self._times = RowTimes()
        self._planned: dict[int, tuple[int, float]] = {}  # further tokens and the time, by step
        self._last_return = self._last_company = -math.inf
        self._num_limited = 0

    def share(self, calls: CallCounts) -> StepShare:
        """Return the share that fits the extra time of this step; all rows if no call has fewer than another."""
        if calls.num_calls > 1:
            self._last_company = self._clock()
            num_first = calls.smallest
        elif calls.num_calls and self._clock() - self._last_company < _REMEMBERED_S:
            num_first = 1
        else:
            return NO_SHARE
        if num_first == calls.largest:
            return StepShare(num_first, num_first, 0)
        num_further = self._num_further()
        return StepShare(num_first, max(num_first, calls.most_each(num_first * calls.num_calls + num_further)), num_further)

    def _num_further(self) -> int:
        base_s, token_s = self._times.base_s, self._times.token_s
        self._num_limited += 1
        if not base_s or self._num_limited % _PROBE_EVERY == 0:
            return 0
        return max(_MIN_TOKENS, int(self._share * base_s / token_s)) if token_s else _FIRST_TOKENS

    def note_planned(self, step_id: int, share: StepShare, num_prompt_tokens: int) -> None:
        """Remember what a step has until it is back."""
        if share is not NO_SHARE and num_prompt_tokens <= _MAX_PROMPT:
            self._planned[step_id] = share.num_further_tokens, self._clock()

    def note_returned(self, step_id: int) -> None:
        """Learn from the time since the step before it was back, or since it was planned if that was later."""
        now = self._clock()
        num_further, planned_at = self._planned.pop(step_id, (0, now))
        if now > planned_at:
            self._times.observe(num_further, now - max(planned_at, self._last_return))
        self._last_return = now

    def forget_steps(self) -> None:
        """Keep the estimates: the next worker is most likely of the same kind."""
        self._planned.clear()
