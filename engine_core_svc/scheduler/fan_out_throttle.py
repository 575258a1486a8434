"""FanOutThrottle: limits how many sequences of one client call a step computes while other calls have fewer.

Called by the scheduler for each plan and each result. On a device that takes longer for more rows, a call with hundreds of
sequences (n outputs, many prompts) would make every step many times longer for all other calls. Each call may have as many
rows in a step as the smallest call has; the further rows of larger calls share evenly the extra time that a step may take. Step
times are measured, so a device that computes 256 rows as fast as 4 gets them all. A row left out keeps its blocks and tokens.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol

from tetrad.engine_core_svc.core.request import CallId, Request
from tetrad.engine_core_svc.scheduler.call_counts import CallCounts
from tetrad.engine_core_svc.scheduler.row_times import Probe, RowTimes

_MIN_TOKENS = 8
"""Minimum number of tokens of further rows per step, even where they take longer than the slowdown allows."""
_FIRST_TOKENS = 16
"""Number of tokens of further rows per step until their time has been measured."""
_MAX_GROWTH = 4
"""Maximum number of tokens of further rows, relative to their mean in the measured steps."""
_SETTLED_S = 0.02
"""Seconds after a step with further rows until a step without them is measured: services still process the outputs of that
step, on the same cores. A step that is measured earlier seems long, so more further rows seem to be allowed."""
_REMEMBERED_S = 1.0
"""Seconds for which other calls still count after their end: a client that waits for each answer soon sends the next call."""
_MAX_PROMPT = 64
"""Maximum number of prompt tokens in a step that measures rows; with more, the step measures prompts instead."""


class StepShare:
    """The rows of one step that calls may use.

    Args:
        num_first: number of rows of each call that do not count as further rows.
        most: maximum number of rows of each call.
        max_further_tokens: maximum number of tokens of all further rows; the prompt of the last one may exceed it.

    Attributes:
        num_further_tokens: number of tokens of further rows that the step computes.
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
        """Count a row with `num_tokens` tokens."""
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
        """Do nothing."""


NO_SHARE = NoShare()


class FanOutThrottle(Protocol):
    """The interface of a throttle for the scheduler."""

    def share(self, calls: CallCounts) -> StepShare:
        """Return the rows of the next step that calls may use."""

    def note_planned(self, step_id: int, share: StepShare, num_prompt_tokens: int) -> None:
        """Note that a step with `num_prompt_tokens` tokens of prompts was planned."""

    def note_returned(self, step_id: int) -> None:
        """Note that the result of a step has arrived."""

    def forget_steps(self) -> None:
        """Forget all steps in flight: the worker is lost."""


class NoFanOutThrottle:
    """Limits no step, as in vLLM."""

    def share(self, calls: CallCounts) -> StepShare:  # noqa: ARG002 - of the interface
        """Return a share without limits."""
        return NO_SHARE

    def note_planned(self, step_id: int, share: StepShare, num_prompt_tokens: int) -> None:
        """Do nothing."""

    def note_returned(self, step_id: int) -> None:
        """Do nothing."""

    def forget_steps(self) -> None:
        """Do nothing."""


class MeasuringFanOutThrottle:
    """Limits the duration of a step to a multiple of its duration without the further rows of large calls.

    Args:
        max_slowdown: the multiple, above 1.
        clock: returns monotonic seconds. The time between results is measured, since it includes the work of the services.
    """

    def __init__(self, max_slowdown: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = max_slowdown - 1
        self._clock = clock
        self._times, self._probe = RowTimes(), Probe()
        self._planned: dict[int, tuple[int, float]] = {}  # step id -> tokens of further rows, time of planning
        self._last_return = self._last_company = self._last_further = -math.inf

    def share(self, calls: CallCounts) -> StepShare:
        """Return the rows that fit the extra time of this step; no limits if all calls have equally many sequences."""
        if calls.num_calls > 1:
            self._last_company = self._clock()
            num_first = calls.smallest
        elif calls.num_calls and self._clock() - self._last_company < _REMEMBERED_S:
            num_first = 1
        else:
            return NO_SHARE
        if num_first == calls.largest:
            return StepShare(num_first, num_first, 0)
        num_further = 0 if self._probe.takes_next_step() else self._num_further()
        return StepShare(num_first, max(num_first, calls.most_each(num_first * calls.num_calls + num_further)), num_further)

    def _num_further(self) -> int:
        times = self._times
        if not times.token_s:
            return _FIRST_TOKENS
        fitting = self._share * times.base_s / times.token_s
        return max(_MIN_TOKENS, int(min(fitting, _MAX_GROWTH * times.mean_tokens)))

    def note_planned(self, step_id: int, share: StepShare, num_prompt_tokens: int) -> None:
        """Remember the further tokens of a step until its result arrives."""
        if share is not NO_SHARE and num_prompt_tokens <= _MAX_PROMPT:
            self._planned[step_id] = share.num_further_tokens, self._clock()

    def note_returned(self, step_id: int) -> None:
        """Learn from the time since the result before, or since the step was planned if that was later."""
        now = self._clock()
        num_further, planned_at = self._planned.pop(step_id, (0, now))
        if now > planned_at:
            seconds = now - max(planned_at, self._last_return)
            if num_further:
                self._times.observe_further(num_further, seconds)
                self._probe.note_further(seconds)
                self._last_further = now
            else:
                is_settled = now - self._last_further >= _SETTLED_S
                if is_settled:
                    self._times.observe_base(seconds)
                self._probe.note_base(seconds, is_measured=is_settled)
        self._last_return = now

    def forget_steps(self) -> None:
        """Forget the steps in flight; keep the estimates, since the next worker is most likely of the same kind."""
        self._planned.clear()
