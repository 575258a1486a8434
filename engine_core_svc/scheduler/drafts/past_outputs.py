"""PastOutputs: finished outputs of each tenant, indexed so that later requests of the same tenant find drafts there.

Made if suffix_decoding_max_cached_requests is set; called by Suffixes and LookupDrafts. A tenant is a cache_salt; requests
without one are one tenant, as in the prefix cache. No tenant finds tokens of another. Memory is limited by the number of
outputs and of their tokens, over all tenants: the oldest outputs are dropped first. To keep an output of 1000 tokens, and to
drop another one, takes 2 to 4 ms between two steps.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

Pair = tuple[int, int]
Found = tuple[Sequence[int], int]
"""A text, and a place in it."""

_MAX_PLACES = 32
"""Maximum number of places of a pair that are kept for a tenant, the latest ones."""
_MAX_TOKENS = 1 << 19
"""Maximum number of tokens of all outputs: up to 190 MB with their index."""
_PAIR = 2
_NONE: Sequence[Found] = ()


class PastOutputs:
    """Finished outputs by tenant.

    Args:
        max_outputs: maximum number of kept outputs.
        num_prompt_tokens: number of tokens of a prompt's end kept with its output, since matches extend backwards into them.
        max_tokens: maximum number of kept tokens.
    """

    def __init__(self, max_outputs: int, num_prompt_tokens: int, max_tokens: int = _MAX_TOKENS) -> None:
        self._max_outputs, self._num_prompt_tokens, self._max_tokens = max_outputs, num_prompt_tokens, max_tokens
        self._kept: deque[tuple[str, array[int]]] = deque()
        self._num_tokens = 0
        self._places: dict[str, dict[Pair, list[Found]]] = {}

    @property
    def num_tokens(self) -> int:
        """The number of kept tokens."""
        return self._num_tokens

    def add(self, tenant: str, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Keep the output of a finished request; `token_ids` are prompt and output."""
        text = array("I", token_ids[max(num_prompt_tokens - self._num_prompt_tokens, 0) :])
        size, first = len(text), max(len(text) - len(token_ids) + num_prompt_tokens, _PAIR)
        # Without a pair of tokens before its last one, a text has no place in the index.
        if size <= first or size > self._max_tokens:
            return
        while len(self._kept) >= self._max_outputs or self._num_tokens + size > self._max_tokens:
            self._drop_oldest()
        self._kept.append((tenant, text))
        self._num_tokens += size
        index = self._places.setdefault(tenant, {})
        for place, pair in enumerate(pairwise(text[first - _PAIR : -1]), first):
            places = index.get(pair)
            if places is None:
                index[pair] = [(text, place)]
            else:
                places.append((text, place))
                if len(places) > _MAX_PLACES:
                    del places[0]

    def find(self, tenant: str, pair: Pair) -> Sequence[Found]:
        """Return the latest texts with the places after this pair of tokens, oldest first."""
        index = self._places.get(tenant)
        return _NONE if index is None else index.get(pair, _NONE)

    def _drop_oldest(self) -> None:
        tenant, text = self._kept.popleft()
        self._num_tokens -= len(text)
        index = self._places[tenant]
        for pair in pairwise(text):
            places = index.get(pair)
            # Places are in the order of their texts, so those of the oldest text come first.
            while places and places[0][0] is text:
                del places[0]
            if places is not None and not places:
                del index[pair]
        if not index:
            del self._places[tenant]
