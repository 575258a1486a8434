"""N-grams: finds where the end of a request's tokens occurred before, and proposes the tokens that followed (prompt lookup).

One per request, made and called by LookupDrafts. The choice is vLLM's: the longest of the last n-grams that occurred before,
at its earliest place. Knows no request; reads its tokens as they grow.
"""

from collections.abc import Sequence

from tetrad.engine_core_svc.scheduler.drafts.places import Places

_MAX_PLACES = 32
"""Maximum number of places that are compared, so that the cost of a frequent n-gram does not grow with the text."""


class Ngrams:
    """Finds n-grams in growing tokens.

    Args:
        shortest, longest: lengths of the n-grams, in tokens.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._longest = longest
        self._places = Places(shortest)

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """Return up to `num_tokens` tokens that may follow `token_ids`, which begin with those of the call before."""
        places = self._places.find(token_ids)
        if not places:
            return ()
        best, most = places[0], 0
        for place in places[:_MAX_PLACES]:
            length = self._places.match_length(token_ids, place, self._longest)
            if length > most:
                best, most = place, length
            if most == self._longest:
                break
        return token_ids[best : best + num_tokens]
