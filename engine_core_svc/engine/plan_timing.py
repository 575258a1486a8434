"""PlanTiming: delays planning the next step to the latest time that still keeps the worker busy.

A request that arrives after a plan waits for that whole step, so a plan made early in a long step delays it without a gain, and
so does a third step in flight. While a device's steps are short, a third one covers the time by which plans are late. If the
worker computes on the cores that also deliver first tokens, and its steps are shorter than that delivery, first tokens are
sent before the next plan. Used on one event loop. Knows the times of steps, and whether they start requests.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

_LEAST_LEAD_S = 0.006
"""Seconds to make, send and read a plan, on a machine whose cores are busy."""
_LEAD_SHARE = 0.25
"""Share of a step's time by which it may be shorter than recent steps."""
_LEAST_HOLD_S = 0.002
"""Minimum delay of a plan, in seconds; for a shorter one no timer is set."""
_NUM_RECENT = 8
"""Number of recent steps; the shortest of them is the expected minimum of a step, as steps with prompts take longer."""
_SHORT_STEP_S = 0.003
"""Step time in seconds below which the other services keep the cores as busy as the worker does."""
_HEAD_START_S = 0.001
"""Seconds from a step's result until its first tokens reach their clients, on otherwise idle cores."""


class PlanTiming:
    """Decides the time of the next plan.

    Args:
        wake: called when that time has come.
        clock: returns monotonic seconds.
        max_long: maximum number of steps in flight while steps are long, or the worker computes on its machine's cores.
        fills_stages: whether steps pass through stages of a pipeline; plans are not delayed then, to keep the first stage busy.

    Attributes:
        shares_cores: whether the worker computes on the cores of its machine, without a device of its own.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        max_long: int = 2,
        fills_stages: bool = False,
    ) -> None:
        self._max_long = max_long
        self._fills_stages = fills_stages
        self.shares_cores = False
        self._wake = wake
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self._begun_at = 0.0
        self._lets_in = False
        self._timer: asyncio.TimerHandle | None = None

    def note_result(self, compute_s: float) -> None:
        """Note that a step's result has arrived, which took `compute_s` seconds on the device; the next step has begun."""
        self._recent.append(compute_s)
        self._begun_at = self._clock()

    def note_dispatched(self, num_in_flight: int, *, lets_in: bool = False) -> None:
        """Note that a plan was sent, with new requests if `lets_in`; it begins now if it is the only one in flight."""
        self._lets_in = lets_in
        if num_in_flight == 1:
            self._begun_at = self._clock()

    def is_due(self, num_in_flight: int) -> bool:
        """Return whether a plan must be made now; otherwise `wake` will be called."""
        self.rest()
        step_s = min(self._recent, default=None)
        is_short = step_s is not None and step_s < _SHORT_STEP_S
        # Where this returns False without a timer, the result of the step in flight wakes the step loop.
        if num_in_flight >= self._max_long and (self.shares_cores or not is_short):
            return False
        if step_s is None or self._fills_stages:
            return True
        if self._lets_in and self.shares_cores and is_short:
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
        """Return whether `span_s` seconds, less `but_for_s`, have passed since the step began; otherwise start the timer."""
        left_s = self._begun_at + span_s - self._clock()
        if left_s <= but_for_s:
            return True
        self._timer = asyncio.get_running_loop().call_later(left_s, self._wake)
        return False
