"""Suffixes: proposes what followed most often where the longest end of a request's tokens occurred before (suffix decoding).

One per request, made and called by LookupDrafts. The rules are those of SuffixDecoding (Oliaro et al. 2024) in vLLM: longer
matches allow more drafts, and a token that followed too seldom ends the proposal. Its tree is replaced by an index of pairs and
a comparison backwards from their latest places.
"""

from collections import Counter
from collections.abc import Sequence

from tetrad.engine_core_svc.scheduler.drafts.places import Places

_MAX_PLACES = 32
"""The latest places that are compared."""
_PAIR = 2


class Suffixes:
    """Lookup in growing tokens.

    Args:
        max_depth: maximum number of tokens of the text's end that are searched.
        max_factor: most drafts, relative to the tokens that were found.
        min_probability: a draft that followed less often than that ends the proposal.
    """

    def __init__(self, max_depth: int, max_factor: float, min_probability: float) -> None:
        self._max_depth, self._max_factor, self._min_probability = max_depth, max_factor, min_probability
        self._places = Places(_PAIR)

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """Return up to so many tokens that may follow `token_ids`, which begin with those of the call before."""
        places = self._places.find(token_ids)[-_MAX_PLACES:]
        if not places:
            return ()
        lengths = [self._places.match_length(token_ids, place, self._max_depth) for place in places]
        longest = max(lengths)
        found = [place for place, length in zip(places, lengths, strict=True) if length == longest]
        return self._most_frequent(token_ids, found, min(num_tokens, int(self._max_factor * longest)))

    def _most_frequent(self, token_ids: Sequence[int], places: list[int], num_tokens: int) -> Sequence[int]:
        draft_ids: list[int] = []
        num_places = len(places)
        for _ in range(num_tokens):
            # Of equally frequent ones the latest.
            followers = Counter(token_ids[place] for place in reversed(places) if place < len(token_ids))
            if not followers:
                break
            token_id, count = followers.most_common(1)[0]
            if count < self._min_probability * num_places:
                break
            draft_ids.append(token_id)
            places = [place + 1 for place in places if place < len(token_ids) and token_ids[place] == token_id]
        return draft_ids
