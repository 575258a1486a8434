"""KV cache manager: allocates the blocks that a request's next tokens need, and finds prefixes that it can share.

Called from scheduler/ only. Keeps each request's block tables and hash count, through a coordinator of its KV groups; knows
nothing of queues, budgets or devices. Blocks are registered as cached when they are planned, before they are written: requests
of the same step share them, because the worker writes all keys and values of a layer before it reads any (vLLM's rule). Blocks
that a failed request leaves unwritten are unregistered (pending_writes.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.kv_groups import ONE_GROUP, KvGroup
from tetrad.engine_core_svc.core.plan import SchedulerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.block_load import BlockLoad
from tetrad.engine_core_svc.kv_cache.block_pool import BlockPool, BlockWatch, NoBlockWatch
from tetrad.engine_core_svc.kv_cache.connector import KVConnector
from tetrad.engine_core_svc.kv_cache.coordinator import Coordinator, NewBlocks, Prefix, UnitaryCoordinator
from tetrad.engine_core_svc.kv_cache.hybrid_coordinator import HybridCoordinator
from tetrad.engine_core_svc.kv_cache.no_cache_coordinator import NoCacheCoordinator
from tetrad.engine_core_svc.kv_cache.pending_writes import PendingWrites
from tetrad.engine_core_svc.kv_cache.prefix_hash import extend_block_hashes


@dataclass(slots=True)
class PrefixCacheStats:
    """Numbers of tokens since start: looked up, found, and found at a connector; of a request's first admission, as in vLLM."""

    queries: int = 0
    hits: int = 0
    host_hits: int = 0


class KVCacheManager:
    """The block tables of requests over one pool.

    Args:
        num_blocks: number of blocks, the null block included.
        block_size: tokens per block.
        groups: KV groups of the model's layers; empty: the model is an encoder, which keeps no keys and values.
        max_step_tokens: maximum number of tokens that one step computes; limits the blocks that a sliding window holds.
        enable_caching: share prefixes between requests.
        connector: notified of blocks that enter and leave the prefix cache; may keep evicted ones. Used by this manager only.
        watch: takes note of how blocks are used. Used by this manager only.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        groups: Sequence[KvGroup] = ONE_GROUP,
        max_step_tokens: int = 2048,
        enable_caching: bool = True,
        connector: KVConnector | None = None,
        watch: BlockWatch | None = None,
    ) -> None:
        self.connector = connector or KVConnector()
        self._watch: BlockWatch = NoBlockWatch() if watch is None else watch
        self.block_size = block_size
        self.stats = PrefixCacheStats()
        self._groups, self._max_step_tokens = groups, max_step_tokens
        self._enable_caching = enable_caching and bool(groups)
        self._has_states = any(group.is_state for group in groups)
        # Events and connectors know only the first group's blocks, and most blocks of a group of states do not exist.
        self._reports_stored = self._enable_caching and not groups[0].is_state
        self._pending_writes = PendingWrites()
        self._begin(num_blocks)

    @property
    def groups(self) -> Sequence[KvGroup]:
        """The KV groups of the model's layers."""
        return self._groups

    def _begin(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, self.connector, self._watch)
        self.coordinator: Coordinator
        if not self._groups:
            self.coordinator = NoCacheCoordinator()
        elif len(self._groups) == 1 and self._groups[0].keeps_all:
            self.coordinator = UnitaryCoordinator(self.pool, self.connector, self.block_size)
        else:
            self.coordinator = HybridCoordinator(
                self._groups,
                self.pool,
                self.connector,
                self.block_size,
                max_step_tokens=self._max_step_tokens,
                keeps_states=self._enable_caching,
            )

    def blocks_for(self, num_tokens: int) -> int:
        """Return the maximum number of blocks that a sequence of `num_tokens` tokens holds at one time."""
        return self.coordinator.blocks_for(num_tokens)

    def find_prefix(self, request: Request) -> Prefix:
        """Return the longest cached prefix, without the last token: that token must be computed for its logits."""
        if not self._enable_caching or request.skip_reading_prefix_cache:
            return self.coordinator.find_prefix(())
        extend_block_hashes(request, self.block_size)
        return self.coordinator.find_prefix(request.block_hashes[: (request.num_tokens - 1) // self.block_size])

    def blocks_missing(self, request: Request) -> int:
        """Return how many more blocks must be free before a waiting request can run; 0 or less: it can run."""
        return self._missing(request, self.find_prefix(request))

    def admit(self, request: Request, num_new_tokens: int, prefix: Prefix, num_reserved: int = 0) -> bool:
        """Allocate a request's shared prefix, and blocks for the next tokens; return False if there is no room.

        There is room only if the whole present sequence fits: partly admitted prompts would preempt each other. `num_reserved`
        of the free blocks are reserved for other requests.
        """
        if self._missing(request, prefix) + num_reserved > 0:
            return False
        self.pool.touch(block for block in prefix.blocks if block is not None)
        request.block_tables = self._bring_back(prefix)
        request.num_computed_tokens = prefix.num_tokens
        request.num_cached_blocks = prefix.num_tokens // self.block_size
        self._pending_writes.note_found(request.key, prefix.keys)
        if self._enable_caching and not request.skip_reading_prefix_cache and not request.num_preemptions:
            self.stats.queries += request.num_tokens
            self.stats.hits += request.num_computed_tokens
            self.stats.host_hits += max((table.count(None) for table in prefix.tables), default=0) * self.block_size
        return self.extend(request, num_new_tokens) is not None

    def begin_load(self, request: Request, prefix: Prefix, num_reserved: int) -> BlockLoad | None:
        """Let a connector fetch the blocks that follow a prefix; None if it has none, or if the whole sequence does not fit.

        `num_reserved` of the free blocks are reserved for other requests. The last token is never fetched: it must be computed
        for its logits.
        """
        if not (self._enable_caching and request.may_load) or request.skip_reading_prefix_cache or self._has_states:
            return None
        found = self.connector.get_num_new_matched_tokens(request, prefix.num_tokens)
        if found < self.block_size:
            self.connector.nothing_to_load(request)
            return None
        first, end = prefix.num_tokens // self.block_size, (request.num_tokens - 1) // self.block_size
        num_blocks = min(found // self.block_size, end - first)
        held = [block for block in prefix.blocks if block is not None]
        num_free = self.pool.num_free - sum(self.pool.num_references(block) == 0 for block in held)
        num_needed = num_blocks * self.coordinator.num_groups
        if num_blocks <= 0 or max(self._missing(request, prefix), num_needed - num_free) + num_reserved > 0:
            return None
        self.pool.touch(held)
        tables = [self.pool.allocate(num_blocks) for _ in range(self.coordinator.num_groups)]
        load = BlockLoad(request, prefix.num_tokens, first, tables, held)
        self.connector.update_state_after_alloc(load)
        return load

    def end_load(self, load: BlockLoad, *, is_received: bool) -> None:
        """Cache the blocks of an ended transfer, unless it has failed, and remove its references to them."""
        if is_received:
            end = load.first + load.num_blocks
            hashes = load.request.block_hashes[load.first : end]
            for row, block_hash in zip(zip(*load.tables, strict=True), hashes, strict=True):
                for block, key in zip(row, self.coordinator.keys_of(block_hash), strict=True):
                    self.pool.cache(block, key)
            self.connector.stored(load.request, load.first, end)
        self.release(load.blocks)

    def extend(self, request: Request, num_new_tokens: int) -> NewBlocks | None:
        """Allocate blocks for the tokens after the computed ones; return the new blocks per group, None if too few are free."""
        end = request.num_computed_tokens + num_new_tokens
        added = self.coordinator.extend(request, end)
        if added is not None and self._enable_caching:
            num_full = min(end, len(request.token_ids)) // self.block_size
            if num_full > request.num_cached_blocks:
                self._register_full_blocks(request, num_full)
        return added

    def most_drafts_after(self, request: Request) -> int:
        """Return the number of drafts that may follow the planned tokens.

        States are kept for the last known token alone, so drafts stay in its block: a rejected draft begins no block.
        """
        return -request.num_computed_tokens % self.block_size if self._has_states else self._max_step_tokens

    def extend_ahead(self, request: Request, num_tokens: int) -> NewBlocks | None:
        """Allocate blocks for tokens that no plan computes yet, and do not cache them; see `extend`.

        None for a model with states: the block of a request's state must stay the last one of its table until it is read.
        """
        if self._has_states:
            return None
        return self.coordinator.extend_ahead(request, request.num_computed_tokens + num_tokens)

    def blocks_of(self, request: Request) -> Sequence[int]:
        """Return the blocks that a request holds, over all groups."""
        return self.coordinator.blocks_of(request)

    def release(self, block_ids: Sequence[int]) -> None:
        """Free blocks; the last blocks of a table are evicted before the first ones."""
        self.pool.free(list(reversed(block_ids)))

    def reset_prefix_cache(self, besides: Collection[int] = ()) -> bool:
        """Forget all prefixes. Return False, without effect, while requests use blocks other than `besides`."""
        if self.pool.num_free + len(besides) != self.pool.num_blocks - 1:
            return False
        self.pool.forget_hashes()
        return True

    def rebuild(self) -> None:
        """Start again with all blocks free and nothing cached: the worker is lost, and their content with it."""
        self._pending_writes.clear()
        lost, num_passed = self.pool, self.coordinator.num_passed
        self._begin(lost.num_blocks)
        # The counts are since start.
        self.pool.num_cached, self.pool.num_evicted = lost.num_cached, lost.num_evicted
        self.coordinator.num_passed = num_passed
        self.connector.cleared()
        self.connector.worker_lost()
        self._watch.forget_all()

    def note_sent(self, plan: SchedulerOutput) -> None:
        """Add the copies that the worker must make before the step to a finished plan."""
        self._pending_writes.note_sent(plan.step_id)
        self.coordinator.note_sent()
        self.connector.build_connector_meta(plan)

    def note_returned(self, step_id: int) -> None:
        """Note that a plan's blocks are written."""
        self._pending_writes.note_returned(step_id)

    def forget_pending(self, failed: Collection[int]) -> Collection[int]:
        """Remove from the prefix cache the blocks that failed requests of the oldest plan in flight were to write.

        Returns the keys of the requests that have found those blocks before, and must be computed again.
        """
        fallout = self._pending_writes.fallout(failed)
        for block_hash in fallout.hashes:
            self.pool.forget(block_hash)
        return fallout.misled

    def _missing(self, request: Request, prefix: Prefix) -> int:
        held = [self.pool.num_references(block) for block in prefix.blocks if block is not None]
        # A cached block without references is one of the free blocks: to use it takes it from them.
        needed = self.coordinator.blocks_for(request.num_tokens, prefix.num_tokens)
        return needed - len(held) + held.count(0) - self.pool.num_free

    def _bring_back(self, prefix: Prefix) -> list[list[int]]:
        """Return a prefix as blocks of the device; contents that a connector has are loaded to new blocks and cached again."""
        keys = [key for block, key in zip(prefix.blocks, prefix.keys, strict=True) if block is None]
        self.connector.hold(keys)  # before anything is evicted for them
        new_blocks = self.pool.allocate(len(keys))
        self.connector.load(keys, new_blocks)
        for block, key in zip(new_blocks, keys, strict=True):
            self.pool.cache(block, key)
        new = iter(new_blocks)
        return [[next(new) if block is None else block for block in table] for table in prefix.tables]

    def _register_full_blocks(self, request: Request, num_full: int) -> None:
        extend_block_hashes(request, self.block_size)
        first, request.num_cached_blocks = request.num_cached_blocks, num_full
        self._pending_writes.note_registered(request.key, self.coordinator.register(request, first, num_full))
        if self._reports_stored:
            self.connector.stored(request, first, num_full)
