"""StepTimes: estimates the time of a step's decodes and of one prompt token from measured steps.

Used by the throttle alone. Knows no requests, reads no clock.
"""

_GAIN = 0.3
"""Weight of the newest step."""
_MAX_RISE = 1.25
"""Maximum of a step's time, relative to the estimate; a longer step counts as this, since the machine was probably busy."""
_MIN_PROMPT = 64
"""Minimum number of tokens of a step without decodes that measures the cost of a token; with fewer, fixed costs dominate."""


class StepTimes:
    """Estimated times in seconds; 0 until steps have been measured.

    Attributes:
        decode_s: time of a step that has only decodes.
        token_s: time of each prompt token beside decodes, including its share of the fixed cost of having any.
    """

    def __init__(self) -> None:
        self.decode_s = 0.0
        self.token_s = 0.0
        self._has_seen_both = False

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from the duration of a step."""
        if num_decodes and num_prompt_tokens <= 1:
            self.decode_s = _moved(self.decode_s, seconds)
        elif num_decodes:
            self.decode_s = self.decode_s or max(seconds - self.token_s * num_prompt_tokens, 0.1 * seconds)
            self.token_s = _moved(self.token_s, max(seconds - self.decode_s, 0.1 * seconds) / num_prompt_tokens)
            self._has_seen_both = True
        elif not self._has_seen_both and (num_prompt_tokens >= _MIN_PROMPT or not self.token_s):
            self.token_s = _moved(self.token_s, seconds / num_prompt_tokens)


def _moved(known: float, seen: float) -> float:
    if not known:
        return seen
    return known + _GAIN * (min(seen, _MAX_RISE * known) - known)
