"""Beginning: finds where the language begins in an output: at once, or after a stretch such as the model's reasoning.

Used by one request's GrammarState. Knows ids; knows nothing of grammars or masks. The position depends only on the ids so far,
so replaying them gives the same position.
"""

import enum
from collections.abc import Sequence


class Phase(enum.Enum):
    """The phase of an output."""

    UNDECIDED = enum.auto()
    """The output so far may be the opening of a stretch, or text of the language."""
    WAITING = enum.auto()
    """The stretch was opened and is not closed."""
    BEGUN = enum.auto()
    """The language has begun."""


class Beginning:
    """Follows one output until its language begins.

    Args:
        opening: ids that open the stretch; empty: it is open from the start.
        end: ids that close it; empty: there is no stretch, and the language begins at once.
    """

    def __init__(self, opening: Sequence[int], end: Sequence[int]) -> None:
        self._opening = tuple(opening)
        self._end = tuple(end)
        self._num_opened = 0
        self._recent: list[int] = []
        if not end:
            self.phase = Phase.BEGUN
        else:
            self.phase = Phase.UNDECIDED if opening else Phase.WAITING

    @property
    def next_opening_id(self) -> int | None:
        """The id that continues the opening; None unless UNDECIDED."""
        return self._opening[self._num_opened] if self.phase is Phase.UNDECIDED else None

    @property
    def last_end_id(self) -> int | None:
        """The last id of the end, if all ids before it have just been sampled; None otherwise, or if the end has one id."""
        before = self._end[:-1]
        is_last = self.phase is Phase.WAITING and before and tuple(self._recent[-len(before) :]) == before
        return self._end[-1] if is_last else None

    def take(self, token_id: int) -> None:
        """Advance by a sampled token."""
        if self.phase is Phase.WAITING:
            self._recent = [*self._recent, token_id][-len(self._end) :]
            if tuple(self._recent) == self._end:
                self.phase = Phase.BEGUN
        elif self.phase is Phase.UNDECIDED:
            self._take_opening(token_id)

    def _take_opening(self, token_id: int) -> None:
        if token_id != self._opening[self._num_opened]:
            self.phase = Phase.BEGUN
            return
        self._num_opened += 1
        if self._num_opened == len(self._opening):
            self.phase = Phase.WAITING
            self._recent = list(self._opening[-len(self._end) :])  # the end may begin with the opening
