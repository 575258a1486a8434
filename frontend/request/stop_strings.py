"""Stop strings: finds the first complete stop string of a text, and how much of the text may be delivered before.

One object per sequence. Knows text only. Rules: the stop string that is complete first ends the text; of several, the first in
the list. Text that could be the start of a stop string is held back, so no part of one is ever delivered.
"""

from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string that was found, and the end of the text before or after it."""

    stop: str
    end: int


class StopStrings:
    """The stop strings of one request.

    Args:
        stops: non-empty strings; may be an empty tuple.
        include_in_output: whether the text ends after the stop string rather than before it.
    """

    __slots__ = ("_include", "_stops", "held_back")

    def __init__(self, stops: tuple[str, ...], *, include_in_output: bool) -> None:
        self._stops = stops
        self._include = include_in_output
        # Number of characters at the end of an unfinished text that are held back.
        self.held_back = 0 if include_in_output else max((len(stop) for stop in stops), default=1) - 1

    def __bool__(self) -> bool:
        return bool(self._stops)

    def find(self, text: str, num_new_chars: int) -> StopMatch | None:
        """Return the first stop string that the last `num_new_chars` characters of `text` complete, or None."""
        if not num_new_chars:
            return None
        best: tuple[int, int] | None = None  # (end of the stop string, its index)
        for order, stop in enumerate(self._stops):
            start = text.find(stop, max(0, len(text) - num_new_chars - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), order) < best):
                best = (start + len(stop), order)
        if best is None:
            return None
        completed, order = best
        stop = self._stops[order]
        return StopMatch(stop, completed if self._include else completed - len(stop))
