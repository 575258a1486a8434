"""StepTally: sums the numbers of an engine step while it is applied, so that metrics change once per step.

Hundreds of sequences receive a token in one step, and most of them received the previous token in the same earlier step: so the
step has few different gaps between tokens, each with many sequences.
"""

import time

from tetrad.frontend.request.request_state import RequestState


class StepTally:
    """The sums of one step.

    Attributes:
        now: time in seconds of the wall clock when the tokens are ready for callers; the caller updates it.
        num_tokens: number of generated tokens.
        gaps: seconds between two tokens of a sequence -> number of such gaps. Tokens that arrive together share the time.
        first: requests that received their first token.
    """

    __slots__ = ("first", "gaps", "now", "num_tokens")

    def __init__(self) -> None:
        self.now = time.time()
        self.num_tokens = 0
        self.gaps: dict[float, int] = {}
        self.first: list[RequestState] = []

    def add(self, last_token_time: float | None, num_tokens: int) -> None:
        """Count a sequence's tokens; `last_token_time` is the time of its previous tokens, None for its first ones."""
        self.num_tokens += num_tokens
        if last_token_time is not None:
            gap = (self.now - last_token_time) / num_tokens
            self.gaps[gap] = self.gaps.get(gap, 0) + num_tokens
