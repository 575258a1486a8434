"""Places: finds where the last tokens of a growing text occurred in it before.

Used by the proposers that search texts, one for each text. It indexes n-grams of one length; longer matches are found by
comparing backwards from an n-gram's place.
"""

from collections.abc import Sequence


class Places:
    """Index of the n-grams of one text.

    Args:
        size: number of tokens of an n-gram.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._num_seen = size

    def find(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the places after the n-grams that equal the last one, in ascending order; `token_ids` only grows."""
        size, places, end = self._size, self._places, len(token_ids)
        for place in range(self._num_seen, end):  # each has a token after it
            places.setdefault(tuple(token_ids[place - size : place]), []).append(place)
        self._num_seen = max(self._num_seen, end)
        return places.get(tuple(token_ids[end - size :]), ()) if end >= size else ()

    def match_length(self, token_ids: Sequence[int], place: int, most: int) -> int:
        """Return how many tokens before a found place equal the last tokens of the text, up to `most`."""
        return match_length(token_ids, place, token_ids, most, self._size)


def match_length(text: Sequence[int], place: int, token_ids: Sequence[int], most: int, known: int = 2) -> int:
    """Return how many tokens before a place of a text equal the last of `token_ids`, up to `most`; at least `known` do."""
    length, most = known, min(most, place, len(token_ids))
    while length < most and text[place - length - 1] == token_ids[-length - 1]:
        length += 1
    return length
