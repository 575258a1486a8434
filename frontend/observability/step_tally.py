"""StepTally: sums up an engine step while it is applied, so that metrics change once per step.

Hundreds of sequences get a token in one step, and most of them got their last token in the same earlier step: so the step has
few different gaps between tokens, each with many sequences.
"""

import time

from tetrad.frontend.request.request_state import RequestState


class StepTally:
    """The sums.

    Attributes:
        now: wall clock in seconds, when the tokens are there for their readers; the caller renews it.
        num_tokens: generated.
        gaps: seconds between two tokens of a sequence -> how many there were. Tokens that come together share their time.
        first: requests that got their first token.
    """

    __slots__ = ("first", "gaps", "now", "num_tokens")

    def __init__(self) -> None:
        self.now = time.time()
        self.num_tokens = 0
        self.gaps: dict[float, int] = {}
        self.first: list[RequestState] = []

    def add(self, last_token_time: float | None, num_tokens: int) -> None:
        """Count a sequence's tokens; `last_token_time`: when it had those before. None: they are its first."""
        self.num_tokens += num_tokens
        if last_token_time is not None:
            gap = (self.now - last_token_time) / num_tokens
            self.gaps[gap] = self.gaps.get(gap, 0) + num_tokens
