"""RowTimes: estimates the time of a step without further rows, and of each token of further rows, from measured steps.

Used by the fan-out throttle alone. The time between two results varies, since steps overlap; so sums over the last steps are
compared, not single steps. Knows no requests, reads no clock.
"""

_DECAY = 0.9
"""Weight of a step relative to the next one of its kind."""
_LONGEST = 4.0
"""Maximum of a step's time, relative to the estimate; a longer step counts as this, since the machine was probably busy."""


class RowTimes:
    """Estimated times in seconds; 0 until steps have been measured.

    Attributes:
        base_s: time of a step without further rows.
        token_s: time of each token of further rows, including its share of the fixed cost of having any.
    """

    def __init__(self) -> None:
        self.base_s = 0.0
        self.token_s = 0.0
        self._num_base = self._base_sum_s = 0.0
        self._num_mixed = self._mixed_sum_s = self._num_tokens = 0.0

    def observe(self, num_further: int, seconds: float) -> None:
        """Learn from a step with `num_further` tokens of further rows."""
        if not num_further:
            self._num_base = _DECAY * self._num_base + 1
            self._base_sum_s = _DECAY * self._base_sum_s + _limited(seconds, self.base_s)
            self.base_s = self._base_sum_s / self._num_base
        elif self.base_s:
            expected = self.base_s + self.token_s * num_further if self.token_s else 0.0
            self._num_mixed = _DECAY * self._num_mixed + 1
            self._num_tokens = _DECAY * self._num_tokens + num_further
            self._mixed_sum_s = _DECAY * self._mixed_sum_s + _limited(seconds, expected)
            longer_s = max(self._mixed_sum_s - self._num_mixed * self.base_s, 0.1 * self._mixed_sum_s)
            self.token_s = longer_s / self._num_tokens


def _limited(seconds: float, expected_s: float) -> float:
    return min(seconds, _LONGEST * expected_s) if expected_s else seconds
