"""Lookahead: when the next step is planned while one runs: as late as the worker never waits for it.

What arrives behind a plan waits for that whole step before its own begins; a plan made early in a long step keeps it out for
nothing. One event loop. Knows steps by their times alone.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

_LEAST_LEAD_S = 0.006
"""For a plan to be made, to travel and to be read, on a machine whose cores are busy."""
_LEAD_SHARE = 0.25
"""Of a step: what it may be shorter than those before it."""
_LEAST_HOLD_S = 0.002
"""Shorter ones are not worth a timer."""
_NUM_RECENT = 8
"""Steps of which the shortest tells how long one takes at least: those with prompts take longer."""


class Lookahead:
    """The time of the next plan.

    Args:
        wake: called when it has come.
        clock: seconds.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._wake = wake
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self._begun_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def note_result(self, compute_s: float) -> None:
        """A step is back, that took so long on the device; the one behind it has begun."""
        self._recent.append(compute_s)
        self._begun_at = self._clock()

    def note_dispatched(self, num_in_flight: int) -> None:
        """A plan is on its way, and so many are without a result; one that is alone begins now."""
        if num_in_flight == 1:
            self._begun_at = self._clock()

    def is_due(self, num_in_flight: int) -> bool:
        """Whether a plan is to be made now; if not, `wake` will be called."""
        self.rest()
        if num_in_flight == 0 or not self._recent:
            return True
        step_s = min(self._recent)
        hold_s = step_s - max(_LEAST_LEAD_S, _LEAD_SHARE * step_s)
        left_s = self._begun_at + hold_s - self._clock()
        if left_s < _LEAST_HOLD_S:
            return True
        self._timer = asyncio.get_running_loop().call_later(left_s, self._wake)
        return False

    def rest(self) -> None:
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
