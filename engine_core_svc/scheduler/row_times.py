"""RowTimes: estimates the time of a step, and the time that each token of the further rows of large calls adds to it.

Used by the fan-out throttle, which measures the steps. A probe decides when steps without further rows are measured.
"""

import math

_BASE_DECAY = 0.9
"""Weight of a step without further rows relative to the next one."""
_FURTHER_DECAY = 0.97
"""Weight of a step with further rows relative to the next one."""
_LONGEST = 4.0
"""Maximum of a step's time, relative to the estimate; a longer step counts as this, since the machine was probably busy."""
_PROBE_STEPS = 4
"""Number of measured steps of a probe."""
_PROBE_PATIENCE = 64
"""Maximum number of planned steps of a probe. Steps with long prompts measure nothing."""
_PROBE_INTERVAL = 16
"""Time of steps with further rows between two probes, relative to the duration of a probe."""


class RowTimes:
    """Estimated times in seconds; 0 until steps have been measured.

    The time between two results varies, since steps overlap; so sums over the last steps are compared, not single steps.

    Attributes:
        base_s: time of a step without further rows.
        token_s: time of each token of further rows, including its share of the fixed cost of having any.
        mean_tokens: mean number of tokens of further rows of the measured steps that have any.
    """

    def __init__(self) -> None:
        self.base_s = self.token_s = self.mean_tokens = 0.0
        self._num_base = self._base_sum_s = 0.0
        self._num_further = self._further_sum_s = self._num_tokens = 0.0

    def observe_base(self, seconds: float) -> None:
        """Learn from a step without further rows."""
        self._num_base = _BASE_DECAY * self._num_base + 1
        self._base_sum_s = _BASE_DECAY * self._base_sum_s + _limited(seconds, self.base_s)
        self.base_s = self._base_sum_s / self._num_base

    def observe_further(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step with `num_tokens` tokens of further rows; no-op until a step without them was measured."""
        if not self.base_s:
            return
        expected_s = self.base_s + self.token_s * num_tokens if self.token_s else 0.0
        self._num_further = _FURTHER_DECAY * self._num_further + 1
        self._num_tokens = _FURTHER_DECAY * self._num_tokens + num_tokens
        self._further_sum_s = _FURTHER_DECAY * self._further_sum_s + _limited(seconds, expected_s)
        longer_s = max(self._further_sum_s - self._num_further * self.base_s, 0.1 * self._further_sum_s)
        self.token_s = longer_s / self._num_tokens
        self.mean_tokens = self._num_tokens / self._num_further


class Probe:
    """Takes a few steps in a row now and then, which have no further rows, so that their time stays measured."""

    def __init__(self) -> None:
        self._num_planned = self._num_measured = 0  # of this probe; none planned: there is no probe now
        self._duration_s = 0.0
        self._further_s = math.inf  # time of steps with further rows since the last probe

    def takes_next_step(self) -> bool:
        """Return whether the next step belongs to a probe, and count it."""
        if not self._num_planned and self._further_s >= _PROBE_INTERVAL * self._duration_s:
            self._num_measured, self._duration_s = 0, 0.0
        elif not self._num_planned:
            return False
        self._num_planned += 1
        if self._num_planned > _PROBE_PATIENCE:
            self._end()
        return self._num_planned > 0

    def note_further(self, seconds: float) -> None:
        """Note the time of a step with further rows."""
        self._further_s += seconds

    def note_base(self, seconds: float, *, is_measured: bool) -> None:
        """Note the time of a step without further rows; after a few measured ones, the probe ends."""
        if self._num_planned:
            self._duration_s += seconds
            self._num_measured += is_measured
            if self._num_measured >= _PROBE_STEPS:
                self._end()

    def _end(self) -> None:
        self._num_planned, self._further_s = 0, 0.0


def _limited(seconds: float, expected_s: float) -> float:
    return min(seconds, _LONGEST * expected_s) if expected_s else seconds
