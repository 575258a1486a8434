"""KV cache manager: gives a request the blocks that its next tokens need, and finds prefixes it can share.

Called from scheduler/ only. Keeps each request's block table and hash count; knows nothing of queues, budgets or devices.
Blocks are registered as cached when they are planned, before they are written: requests of the same step share them, because
the worker writes all keys and values of a layer before it reads any (vLLM's rule). What a failed request leaves unwritten is
taken back (pending_writes.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.plan import Swaps
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.block_pool import BlockPool
from tetrad.engine_core_svc.kv_cache.events import KvEvents, NoKvEvents
from tetrad.engine_core_svc.kv_cache.pending_writes import PendingWrites
from tetrad.engine_core_svc.kv_cache.prefix_hash import extend_block_hashes
from tetrad.engine_core_svc.kv_cache.second_tier import NoSecondTier, SecondTier

Prefix = Sequence[int | None]
"""The cached blocks that a request begins with, in order; None: its content is in the second tier."""


@dataclass(slots=True)
class PrefixCacheStats:
    """Since start: tokens looked up and tokens found, of these those in the second tier; counted once per admission."""

    queries: int = 0
    hits: int = 0
    host_hits: int = 0


class KVCacheManager:
    """Block tables over one pool.

    Args:
        num_blocks: the null block included.
        block_size: tokens per block.
        enable_caching: share prefixes between requests.
        events: told of what enters and leaves the prefix cache.
        second_tier: what is evicted goes there; not shared with anyone.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_caching: bool = True,
        events: KvEvents | None = None,
        second_tier: SecondTier | None = None,
    ) -> None:
        self._events = events or NoKvEvents()
        self.second_tier = second_tier or NoSecondTier()
        self.pool = BlockPool(num_blocks, self._events, self.second_tier)
        self.block_size = block_size
        self.stats = PrefixCacheStats()
        self._enable_caching = enable_caching
        self._pending_writes = PendingWrites()

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, request: Request) -> list[int | None]:
        """Return the blocks of the longest cached prefix, at most one token short of the whole: that one gives the logits."""
        if not self._enable_caching or request.skip_reading_prefix_cache:
            return []
        extend_block_hashes(request, self.block_size)
        found: list[int | None] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block = self.pool.find(block_hash)
            if block is None and not self.second_tier.has(block_hash):
                break
            found.append(block)
        return found

    def blocks_missing(self, request: Request) -> int:
        """Return how many more blocks must become free before `request` can be admitted; not above 0: it can."""
        return self._missing(request, self.find_prefix(request))

    def admit(self, request: Request, num_new_tokens: int, prefix: Prefix, *, num_reserved: int = 0) -> bool:
        """Give a request without blocks its shared prefix and blocks for the next tokens; False if there is no room.

        There is room only if the whole current sequence fits: half-admitted prompts would only preempt each other. Of the
        free blocks, `num_reserved` are others'.
        """
        if self._missing(request, prefix) + num_reserved > 0:
            return False
        self.pool.touch(block for block in prefix if block is not None)
        request.block_ids = self._bring_back(request, prefix)
        request.num_computed_tokens = len(prefix) * self.block_size
        request.num_cached_blocks = len(prefix)
        self._pending_writes.note_found(request.key, request.block_hashes[: len(prefix)])
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
        self.second_tier.clear()
        self._pending_writes.clear()
        self.pool = BlockPool(self.pool.num_blocks, self._events, self.second_tier)
        self._events.cleared()

    def note_sent(self, step_id: int) -> Swaps:
        """Return what must be copied before the plan that was just made is run."""
        self._pending_writes.note_sent(step_id)
        return self.second_tier.take_swaps()

    def note_returned(self, step_id: int) -> None:
        """A plan's blocks are written."""
        self._pending_writes.note_returned(step_id)

    def forget_pending(self, failed: Collection[int]) -> Collection[int]:
        """Let nobody find the blocks that requests, which have failed in the oldest plan in flight, were to write.

        Returns the keys of the requests that have found them before, and must be computed again.
        """
        fallout = self._pending_writes.fallout(failed)
        for block_hash in fallout.hashes:
            self.pool.forget(block_hash)
        return fallout.misled

    def _missing(self, request: Request, prefix: Prefix) -> int:
        held = [self.pool.num_references(block) for block in prefix if block is not None]
        # Adopting a cached block that nobody holds takes it out of the free ones as well.
        return self.blocks_for(request.num_tokens) - len(held) + held.count(0) - self.pool.num_free

    def _bring_back(self, request: Request, prefix: Prefix) -> list[int]:
        """Return a prefix as blocks of the device: those that are in the second tier get new ones, and are cached again."""
        hashes = [request.block_hashes[index] for index, block in enumerate(prefix) if block is None]
        host_blocks = [self.second_tier.hold(block_hash) for block_hash in hashes]  # before anything is evicted for them
        new_blocks = self.pool.allocate(len(hashes))
        self.second_tier.bring_back(host_blocks, new_blocks)
        for block, block_hash in zip(new_blocks, hashes, strict=True):
            self.pool.cache(block, block_hash)
        self.stats.host_hits += len(hashes) * self.block_size
        new = iter(new_blocks)
        return [next(new) if block is None else block for block in prefix]

    def _register_full_blocks(self, request: Request, num_tokens: int) -> None:
        num_full = num_tokens // self.block_size
        if num_full <= request.num_cached_blocks:
            return
        extend_block_hashes(request, self.block_size)
        for index in range(request.num_cached_blocks, num_full):
            self.pool.cache(request.block_ids[index], request.block_hashes[index])
        self._pending_writes.note_registered(request.key, request.block_hashes[request.num_cached_blocks : num_full])
        self._events.stored(request, request.num_cached_blocks, num_full)
        request.num_cached_blocks = num_full
