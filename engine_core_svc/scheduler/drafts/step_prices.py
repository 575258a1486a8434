"""Step prices: estimates the duration of a step by its number of rows, and the cost of one more row, from measured steps.

A row is a token of a decoding request, or a draft behind it. Used by the judgement of drafts alone. Knows no requests, reads no
clock.
"""

_KEEP = 0.95
"""Weight of earlier steps when a step is added: about the last 20 steps count."""
_MAX_RISE = 1.5
"""Maximum of a step's duration, relative to the estimate; a longer step counts as this, since the machine was probably busy."""
_MIN_VARIANCE = 0.25
"""Minimum variance of the numbers of rows of recent steps; below it the cost of a row cannot be estimated."""
_ROWS_OF_BASE = 10
"""Until that is known, what a step costs beside its rows counts as so many of them."""
_GAP_GAIN = 0.2
"""Weight of the newest gap."""


class Gap:
    """Seconds between two steps in which the worker computes nothing; 0 as long as nothing is known."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Learn from a gap; a negative one counts as none."""
        seconds = max(seconds, 0.0)
        self.seconds += _GAP_GAIN * (min(seconds, 2 * self.seconds) - self.seconds) if self.seconds else seconds


class StepPrices:
    """A line through recent steps, by least squares with exponential weights. 0 as long as nothing is known.

    Attributes:
        waiting_gap: between steps of which each was planned after the result before it.
        ahead_gap: between steps that were planned ahead.
    """

    def __init__(self) -> None:
        self.waiting_gap, self.ahead_gap = Gap(), Gap()
        self._weight = self._rows = self._seconds = self._rows_rows = self._rows_seconds = 0.0

    def observe(self, num_rows: int, seconds: float) -> None:
        """Learn from a step without prompts."""
        expected = self.step_s(num_rows)
        if expected:
            seconds = min(seconds, _MAX_RISE * expected)
        self._weight = _KEEP * self._weight + 1
        self._rows = _KEEP * self._rows + num_rows
        self._seconds = _KEEP * self._seconds + seconds
        self._rows_rows = _KEEP * self._rows_rows + num_rows * num_rows
        self._rows_seconds = _KEEP * self._rows_seconds + num_rows * seconds

    @property
    def row_s(self) -> float:
        """Seconds of one more row."""
        if not self._weight:
            return 0.0
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        variance = self._rows_rows / self._weight - rows * rows
        if variance < _MIN_VARIANCE:
            return seconds / (rows + _ROWS_OF_BASE)
        slope = (self._rows_seconds / self._weight - rows * seconds) / variance
        return min(max(slope, 0.0), seconds / rows)

    def step_s(self, num_rows: int) -> float:
        """Return the seconds of a step with so many rows."""
        if not self._weight:
            return 0.0
        return max(0.0, (self._seconds + self.row_s * (num_rows * self._weight - self._rows)) / self._weight)
