"""NextTokens: how many tokens of a request the plan being made computes.

Called by the scheduler for one request after the other. The limits are what the request needs, its media that are not encoded,
the bytes of the step's messages, and the tokens that the plan has left (budget.py). Knows no queue and no order of requests.
"""

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.coordinator import Prefix
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.media.planning import Media, NoMedia
from tetrad.engine_core_svc.scheduler.budget import StepBudget


class NextTokens:
    """The tokens that requests compute next.

    Args:
        kv_cache: finds the prefixes of waiting requests.
        media: the media of the requests.
        splits_prompts: whether a prompt may be computed in chunks; otherwise it waits for a plan with room for the whole.
    """

    def __init__(self, kv_cache: KVCacheManager, media: Media | NoMedia, *, splits_prompts: bool) -> None:
        self._kv_cache, self._media, self._splits_prompts = kv_cache, media, splits_prompts

    def of_running(self, request: Request, budget: StepBudget) -> int:
        """Spend and return the tokens that a running request computes; 0: none in this plan."""
        if request.is_held:
            return 0
        known = len(request.token_ids) + request.num_placeholders
        if request.num_placeholders and known >= request.max_total_tokens:
            return 0  # its last token is in flight
        num_tokens = known - request.num_computed_tokens
        if request.sizes.is_light:
            return budget.take(num_tokens)
        num_tokens = self._media.most_tokens(request, request.num_computed_tokens, num_tokens)
        num_tokens = budget.messages.most_tokens(request, request.num_computed_tokens, num_tokens)
        return self._take(request, request.num_computed_tokens, num_tokens, budget)

    def prefix_to_follow(self, request: Request, budget: StepBudget) -> Prefix | None:
        """Return the cached prefix of a waiting request; None if it is held or the messages of the step have no room for it."""
        if request.num_placeholders or request.is_held or not budget.messages.can_describe(request):
            return None
        prefix = self._kv_cache.find_prefix(request)
        start = prefix.num_tokens
        fits = request.sizes.is_light or budget.messages.most_tokens(request, start, request.num_tokens - start) > 0
        return prefix if fits else None

    def num_ready(self, request: Request, prefix: Prefix) -> int:
        """Return how many tokens of a waiting request may be computed after its prefix, before media that are not encoded."""
        remaining = request.num_tokens - prefix.num_tokens
        return remaining if request.sizes.is_light else self._media.most_tokens(request, prefix.num_tokens, remaining)

    def is_ready(self, request: Request) -> bool:
        """Return whether a waiting request computes tokens as soon as there is room for it."""
        is_held = request.num_placeholders or request.is_held
        return not is_held and self.num_ready(request, self._kv_cache.find_prefix(request)) > 0

    def admit(self, request: Request, prefix: Prefix, num_ready: int, budget: StepBudget, num_reserved: int) -> int:
        """Allocate a waiting request's blocks; spend and return the tokens to compute, 0 if it cannot run in this plan.

        Args:
            request: the request.
            prefix: its cached prefix.
            num_ready: see `num_ready`.
            budget: the tokens and bytes that are left.
            num_reserved: number of free blocks that are reserved for other requests.
        """
        if num_ready > budget.num_tokens and not self._splits_prompts:
            return 0
        num_wanted = budget.messages.most_tokens(request, prefix.num_tokens, num_ready)
        num_new = self._take(request, prefix.num_tokens, num_wanted, budget)
        if num_new and not self._kv_cache.admit(request, num_new, prefix, num_reserved=num_reserved):
            budget.give_back(num_wanted, num_new)
            return 0
        return num_new

    def _take(self, request: Request, start: int, num_wanted: int, budget: StepBudget) -> int:
        """Spend and return the tokens that a request computes from position `start` on, at most `num_wanted`."""
        num_tokens = budget.take(num_wanted)
        if request.sizes.is_light:
            return num_tokens
        whole = self._media.whole_tokens(request, start, num_tokens, min(num_wanted, num_tokens + budget.num_tokens))
        budget.give_back(num_wanted, num_tokens - whole)
        return whole
