"""Suffixes: finds earlier occurrences of a request's last tokens, and proposes the most frequent continuation.

One per request, made and called by LookupDrafts. The rules are those of SuffixDecoding (Oliaro et al. 2024) in vLLM: longer
matches allow more drafts, and a token that followed too seldom ends the proposal. Its trees, of the request's own text and of
earlier outputs, are replaced by indexes of pairs and a comparison backwards from their latest places.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from tetrad.engine_core_svc.scheduler.drafts.past_outputs import Found, Pair
from tetrad.engine_core_svc.scheduler.drafts.places import Places, match_length

_MAX_PLACES = 32
"""Maximum number of places that are compared, the latest ones, in the request's text and in earlier outputs each."""
_PAIR = 2


def no_past(pair: Pair) -> Sequence[Found]:  # noqa: ARG001 - of the signature
    """Return no places: there are no earlier outputs."""
    return ()


class Suffixes:
    """Finds suffixes in growing tokens, and in earlier outputs.

    Args:
        max_depth: maximum number of tokens of the text's end that are matched.
        max_factor: maximum number of drafts, relative to the length of the match in tokens.
        min_probability: minimum share of the places at which a draft followed; a rarer token ends the proposal.
        find_past: returns the places after a pair of tokens in earlier outputs.
    """

    def __init__(
        self,
        max_depth: int,
        max_factor: float,
        min_probability: float,
        find_past: Callable[[Pair], Sequence[Found]] = no_past,
    ) -> None:
        self._max_depth, self._max_factor, self._min_probability = max_depth, max_factor, min_probability
        self._places, self._find_past = Places(_PAIR), find_past

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """Return up to `num_tokens` tokens that may follow `token_ids`, which begin with those of the call before."""
        own = [(token_ids, place) for place in self._places.find(token_ids)[-_MAX_PLACES:]]
        past = self._find_past((token_ids[-2], token_ids[-1])) if len(token_ids) >= _PAIR else ()
        places: list[Found] = [*past, *own]
        if not places:
            return ()
        lengths = [match_length(text, place, token_ids, self._max_depth) for text, place in places]
        longest = max(lengths)
        found = [each for each, length in zip(places, lengths, strict=True) if length == longest]
        return self._most_frequent(found, int(min(num_tokens, self._max_factor * longest)))

    def _most_frequent(self, places: list[Found], num_tokens: int) -> Sequence[int]:
        draft_ids: list[int] = []
        num_places = len(places)
        for _ in range(num_tokens):
            # Among equally frequent tokens, take the one of the latest place.
            followers = Counter(text[place] for text, place in reversed(places) if place < len(text))
            if not followers:
                break
            token_id, count = followers.most_common(1)[0]
            if count < self._min_probability * num_places:
                break
            draft_ids.append(token_id)
            places = [(text, place + 1) for text, place in places if place < len(text) and text[place] == token_id]
        return draft_ids
