"""PredictedText: follows an output along a text that was predicted for it (OpenAI's predicted outputs).

Called by the engine core, for the tokens that may come next, and by the frontend, for the number of predicted tokens in the
output. It starts at the text's beginning. After a difference it continues where the output's last two tokens occur in the text,
if possible after the difference. The result depends only on the two sequences of tokens.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

_PAIR = 2


class PredictedText:
    """A predicted text, and the present position in it.

    Args:
        token_ids: its tokens.

    Attributes:
        num_found: number of tokens of the text that the output contains so far, each counted once.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids
        self._places: dict[tuple[int, int], list[int]] = {}
        for place, pair in enumerate(pairwise(token_ids), _PAIR):
            self._places.setdefault(pair, []).append(place)
        self._place: int = 0  # position of the token that should come next
        self._is_lost = False
        self._last: int | None = None
        self._num_passed = 0  # number of tokens of the text that were found or skipped
        self._is_last_found = False  # whether num_found counts the output's last token
        self.num_found = 0

    @property
    def num_missing(self) -> int:
        """The number of tokens of the text that the output does not contain."""
        return len(self._token_ids) - self.num_found

    def follow(self, token_ids: Iterable[int]) -> None:
        """Follow the next tokens of the output."""
        for token_id in token_ids:
            self._follow(token_id)
            self._last = token_id

    def expected(self, num_tokens: int) -> Sequence[int]:
        """Return up to `num_tokens` tokens that should come next; none while the output differs from the text."""
        return () if self._is_lost else self._token_ids[self._place : self._place + num_tokens]

    def _follow(self, token_id: int) -> None:
        if not self._is_lost and self._token_ids[self._place : self._place + 1] == [token_id]:
            self._move_to(self._place + 1, num_matched=1)
            return
        places = None if self._last is None else self._places.get((self._last, token_id))
        self._is_lost = places is None
        if places is None:
            self._is_last_found = False
            return
        place = next((place for place in places if place > self._place), places[-1])
        self._move_to(place, num_matched=_PAIR - self._is_last_found)

    def _move_to(self, place: int, num_matched: int) -> None:
        """Move to a position, before which `num_matched` tokens of the output are matched that are not counted yet."""
        self._place = place
        self._is_last_found = place > self._num_passed
        self.num_found += max(0, min(num_matched, place - self._num_passed))
        self._num_passed = max(self._num_passed, place)
