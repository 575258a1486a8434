"""KV cache manager: gives a request the blocks that its next tokens need, and finds prefixes it can share.

Called by the scheduler only. Keeps each request's block table and hash count; knows nothing of queues, budgets or devices.
Blocks are registered as cached when they are planned, before they are written: requests of the same step share them, because
the worker writes all keys and values of a layer before it reads any (vLLM's rule).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.kv_cache.block_pool import BlockPool
from tetrad.engine_core_svc.kv_cache.events import KvEvents, NoKvEvents
from tetrad.engine_core_svc.kv_cache.prefix_hash import extend_block_hashes
from tetrad.engine_core_svc.request import Request


@dataclass(slots=True)
class PrefixCacheStats:
    """Since start: tokens looked up and tokens found, counted once per admission."""

    queries: int = 0
    hits: int = 0


class KVCacheManager:
    """Block tables over one pool.

    Args:
        num_blocks: the null block included.
        block_size: tokens per block.
        enable_caching: share prefixes between requests.
        events: told of what enters and leaves the prefix cache.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_caching: bool = True, events: KvEvents | None = None
    ) -> None:
        self._events = events or NoKvEvents()
        self.pool = BlockPool(num_blocks, self._events)
        self.block_size = block_size
        self.stats = PrefixCacheStats()
        self._enable_caching = enable_caching

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, request: Request) -> list[int]:
        """Return the blocks of the longest cached prefix, at most one token short of the whole: that one gives the logits."""
        if not self._enable_caching or request.skip_reading_prefix_cache:
            return []
        extend_block_hashes(request, self.block_size)
        found: list[int] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block = self.pool.find(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def blocks_missing(self, request: Request) -> int:
        """Return how many more blocks must become free before `request` can be admitted; not above 0: it can."""
        return self._missing(request, self.find_prefix(request))

    def admit(self, request: Request, num_new_tokens: int, prefix: Sequence[int], *, num_reserved: int = 0) -> bool:
        """Give a request without blocks its shared prefix and blocks for the next tokens; False if there is no room.

        There is room only if the whole current sequence fits: half-admitted prompts would only preempt each other. Of the
        free blocks, `num_reserved` are others'.
        """
        if self._missing(request, prefix) + num_reserved > 0:
            return False
        self.pool.touch(prefix)
        request.block_ids = list(prefix)
        request.num_computed_tokens = len(prefix) * self.block_size
        request.num_cached_blocks = len(prefix)
        if self._enable_caching:
            self.stats.queries += request.num_tokens
            self.stats.hits += request.num_computed_tokens
        return self.extend(request, num_new_tokens) is not None

    def extend(self, request: Request, num_new_tokens: int) -> Sequence[int] | None:
        """Make room for tokens behind the computed ones; return the blocks added, or None if there are too few."""
        end = request.num_computed_tokens + num_new_tokens
        missing = self.blocks_for(end) - len(request.block_ids)
        added: Sequence[int] = ()
        if missing > 0:
            if missing > self.pool.num_free:
                return None
            added = self.pool.allocate(missing)
            request.block_ids.extend(added)
        if self._enable_caching:
            self._register_full_blocks(request, min(end, request.num_tokens))
        return added

    def release(self, block_ids: Sequence[int]) -> None:
        """Take a block table back; its tail is evicted before its head."""
        self.pool.free(list(reversed(block_ids)))

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes; False, and nothing is done, while any block is in use."""
        if self.pool.num_free != self.pool.num_blocks - 1:
            return False
        self.pool.forget_hashes()
        return True

    def rebuild(self) -> None:
        """Start over with all blocks free and nothing cached: their content is gone with the worker."""
        self.pool = BlockPool(self.pool.num_blocks, self._events)
        self._events.cleared()

    def _missing(self, request: Request, prefix: Sequence[int]) -> int:
        # Adopting a cached block that nobody holds takes it out of the free ones as well.
        adopted = sum(1 for block in prefix if self.pool.num_references(block) == 0)
        return self.blocks_for(request.num_tokens) - len(prefix) + adopted - self.pool.num_free

    def _register_full_blocks(self, request: Request, num_tokens: int) -> None:
        num_full = num_tokens // self.block_size
        if num_full <= request.num_cached_blocks:
            return
        extend_block_hashes(request, self.block_size)
        for index in range(request.num_cached_blocks, num_full):
            self.pool.cache(request.block_ids[index], request.block_hashes[index])
        self._events.stored(request, request.num_cached_blocks, num_full)
        request.num_cached_blocks = num_full
