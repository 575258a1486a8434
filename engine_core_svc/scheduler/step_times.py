"""StepTimes: what a step takes, learned from the steps that were.

Used by the pacer alone. A step is taken to last `decode_s`, if any request decodes in it, and `token_s` for each token of a
prompt. Both change as requests come, grow and go, and most steps show only their sum. So they are tracked as a random walk by a
Kalman filter (R. E. Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960), which moves whichever is the
less certain. Knows no requests, reads no clock.
"""

_NOISE = 0.1
"""Standard deviation of a step's time about what is expected, relative to that."""
_DRIFT = 0.05
"""Standard deviation of either value's change from one step to the next, relative to that value."""
_MAX_SURPRISE = 1.0
"""A step that took longer by more than this share of the expected counts as this: it met something that has passed."""
_MIN_PROMPT = 64
"""Tokens of a step without decodes that tells what one costs; fewer tell what a step costs at least."""


class StepTimes:
    """Seconds, 0 as long as nothing is known.

    Attributes:
        decode_s: of a step's decodes, all together.
        token_s: of each prompt token beside them.
    """

    def __init__(self) -> None:
        self.decode_s = 0.0
        self.token_s = 0.0
        self._decode_variance = 0.0
        self._token_variance = 0.0
        self._covariance = 0.0

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from a step."""
        if not num_decodes and num_prompt_tokens < _MIN_PROMPT:
            return
        has_decodes = min(num_decodes, 1)
        self._begin(has_decodes, num_prompt_tokens, seconds)
        self._drift()
        expected = has_decodes * self.decode_s + num_prompt_tokens * self.token_s
        surprise = min(seconds - expected, _MAX_SURPRISE * expected)
        with_decode = has_decodes * self._decode_variance + num_prompt_tokens * self._covariance
        with_token = has_decodes * self._covariance + num_prompt_tokens * self._token_variance
        variance = has_decodes * with_decode + num_prompt_tokens * with_token + (_NOISE * expected) ** 2
        self.decode_s = max(self.decode_s + with_decode / variance * surprise, 0.5 * self.decode_s)
        self.token_s = max(self.token_s + with_token / variance * surprise, 0.5 * self.token_s)
        self._decode_variance -= with_decode**2 / variance
        self._token_variance -= with_token**2 / variance
        self._covariance -= with_decode * with_token / variance

    def _begin(self, has_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Take the first step of a kind for what it shows, and trust that little."""
        if not has_decodes and not self.token_s:
            self.token_s = seconds / num_prompt_tokens
            self._token_variance = self.token_s**2
        elif has_decodes and not self.decode_s:
            # If there are prompts beside, most of the time may be theirs.
            self.decode_s = max(seconds - self.token_s * num_prompt_tokens, seconds / (1 + num_prompt_tokens))
            self._decode_variance = self.decode_s**2

    def _drift(self) -> None:
        """Grow less certain, up to not at all: a value that no step shows for hours has a limit, too."""
        self._decode_variance = min(self._decode_variance + (_DRIFT * self.decode_s) ** 2, self.decode_s**2)
        self._token_variance = min(self._token_variance + (_DRIFT * self.token_s) ** 2, self.token_s**2)
        limit = (self._decode_variance * self._token_variance) ** 0.5
        self._covariance = min(max(self._covariance, -limit), limit)
