"""Beginning: finds where the language begins in an output: at once, or after a stretch such as the model's reasoning.

Used by one request's GrammarState. Knows ids; knows nothing of grammars or masks. The position depends only on the ids so far,
so replaying them gives the same position.
"""

import enum
from collections.abc import Sequence
from copy import copy

from tetrad.engine_core_svc.structured_output.stretch_end import StretchEnd
from tetrad.engine_core_svc.structured_output.vocabulary import Words


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
        end: closes it; None: there is no stretch, and the language begins at once.
    """

    def __init__(self, opening: Sequence[int], end: StretchEnd | None) -> None:
        self._opening = tuple(opening)
        self._end = end
        self._num_opened = 0
        if end is None:
            self.phase = Phase.BEGUN
        else:
            self.phase = Phase.UNDECIDED if opening else Phase.WAITING

    @property
    def next_opening_id(self) -> int | None:
        """The id that continues the opening; None unless UNDECIDED."""
        return self._opening[self._num_opened] if self.phase is Phase.UNDECIDED else None

    @property
    def waiting_mask(self) -> Words | None:
        """The tokens that may be sampled next [num_words], without EOS; None unless WAITING."""
        return self._end.mask if self._end is not None and self.phase is Phase.WAITING else None

    def take(self, token_id: int) -> None:
        """Advance by a sampled token."""
        if self.phase is Phase.WAITING:
            if self._end is None or self._end.take(token_id):
                self.phase = Phase.BEGUN
        elif self.phase is Phase.UNDECIDED:
            self._take_opening(token_id)

    def copy(self) -> "Beginning":
        """Return an independent copy."""
        twin = copy(self)
        twin._end = copy(self._end)  # noqa: SLF001 - of this class
        return twin

    def _take_opening(self, token_id: int) -> None:
        if token_id != self._opening[self._num_opened]:
            self.phase = Phase.BEGUN
            return
        self._num_opened += 1
        if self._num_opened == len(self._opening):
            self.phase = Phase.WAITING
            for opening_id in self._opening:  # the end may begin with the opening
                self.take(opening_id)
