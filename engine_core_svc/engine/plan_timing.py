"""PlanTiming: delays planning the next step to the latest time that still keeps the worker busy.

A request that arrives after a plan waits for that whole step; a plan made early in a long step delays it for nothing. Where a
worker computes on the same cores as the delivery of first tokens, and its steps are shorter than that delivery, first tokens
are sent before the next plan. One event loop. Knows the times of steps, and whether they start requests.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

_LEAST_LEAD_S = 0.006
"""Time to make, send and read a plan, on a machine whose cores are busy."""
_LEAD_SHARE = 0.25
"""Share of a step's time by which it may be shorter than recent steps."""
_LEAST_HOLD_S = 0.002
"""Shorter waits are not worth a timer."""
_NUM_RECENT = 8
"""Recent steps whose shortest duration is the minimum of a step; steps with prompts take longer."""
_SHORT_STEP_S = 0.003
"""Below it the other services keep the cores as busy as the worker does: they have work when it has none."""
_HEAD_START_S = 0.001
"""From a step's result until its first tokens reach their clients, on otherwise idle cores."""


class PlanTiming:
    """The time of the next plan.

    Args:
        wake: called when it has come.
        clock: seconds.
        fills_stages: steps pass through the stages of a pipeline: the first stage is to find the next plan at any time.

    Attributes:
        shares_cores: the worker has no device of its own, it computes on the cores of its machine.
    """

    def __init__(
        self, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic, *, fills_stages: bool = False
    ) -> None:
        self._fills_stages = fills_stages
        self.shares_cores = False
        self._wake = wake
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self._begun_at = 0.0
        self._lets_in = False
        self._timer: asyncio.TimerHandle | None = None

    def note_result(self, compute_s: float) -> None:
        """A step is back, that took so long on the device; the one behind it has begun."""
        self._recent.append(compute_s)
        self._begun_at = self._clock()

    def note_dispatched(self, num_in_flight: int, *, lets_in: bool = False) -> None:
        """A plan is on its way, with new requests or without, and so many have no result yet; one that is alone begins now."""
        self._lets_in = lets_in
        if num_in_flight == 1:
            self._begun_at = self._clock()

    def is_due(self, num_in_flight: int) -> bool:
        """Whether a plan is to be made now; if not, `wake` will be called."""
        self.rest()
        if not self._recent or self._fills_stages:
            return True
        step_s = min(self._recent)
        if self._lets_in and self.shares_cores and step_s < _SHORT_STEP_S:
            # Its result wakes the step loop.
            return num_in_flight == 0 and self._is_over(_HEAD_START_S)
        if num_in_flight == 0:
            return True
        hold_s = step_s - max(_LEAST_LEAD_S, _LEAD_SHARE * step_s)
        return self._is_over(hold_s, but_for_s=_LEAST_HOLD_S)

    def rest(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self, span_s: float, *, but_for_s: float = 0.0) -> bool:
        """Whether so much time has gone by since a step came back or began, but for so little; else `wake` will be called."""
        left_s = self._begun_at + span_s - self._clock()
        if left_s <= but_for_s:
            return True
        self._timer = asyncio.get_running_loop().call_later(left_s, self._wake)
        return False
