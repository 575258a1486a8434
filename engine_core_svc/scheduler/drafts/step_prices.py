"""Step prices: estimates the duration of a step by its number of rows, and the cost of one more row, from measured steps.

A row is a token of a decoding request, or a draft after it. Used only by the judgement of drafts. Knows no requests, reads no
clock.
"""

_KEEP = 0.95
"""Weight of earlier steps when a step is added: about the last 20 steps count."""
_MAX_RISE = 1.5
"""Maximum of a step's duration, relative to the estimate; a longer step counts as this, since the machine was probably busy."""
_MIN_VARIANCE = 0.25
"""Minimum variance of the numbers of rows of recent steps; below it the cost of a row cannot be estimated."""
_ROWS_OF_BASE = 10
"""Assumed cost of a step beside its rows, as a number of rows, until the cost of a row can be estimated."""
_GAP_GAIN = 0.2
"""Weight of the newest gap."""
_LEAST_CHANGE_S = 0.0005
"""Smallest maximum of the difference between a gap and the estimate; a longer difference counts as the maximum."""


class Gap:
    """Seconds between two steps in which the worker computes nothing; 0 until one was measured.

    In a pipeline, where steps overlap, it is negative.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Learn from a gap."""
        if not self.seconds:
            self.seconds = seconds
            return
        most = max(abs(self.seconds), _LEAST_CHANGE_S)
        self.seconds += _GAP_GAIN * min(max(seconds - self.seconds, -most), most)


class StepPrices:
    """A line through recent steps, by least squares with exponential weights. Estimates are 0 until a step was measured.

    Attributes:
        waiting_gap: gap before steps that were planned after the previous result.
        ahead_gap: gap before steps that were planned ahead of the previous result.
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
        """The seconds that one more row costs."""
        if not self._weight:
            return 0.0
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        variance = self._rows_rows / self._weight - rows * rows
        if variance < _MIN_VARIANCE:
            return seconds / (rows + _ROWS_OF_BASE)
        slope = (self._rows_seconds / self._weight - rows * seconds) / variance
        return min(max(slope, 0.0), seconds / rows)

    def step_s(self, num_rows: int) -> float:
        """Return the estimated seconds of a step with `num_rows` rows; 0 until a step was measured."""
        if not self._weight:
            return 0.0
        return max(0.0, (self._seconds + self.row_s * (num_rows * self._weight - self._rows)) / self._weight)
