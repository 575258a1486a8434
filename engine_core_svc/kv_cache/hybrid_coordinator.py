"""HybridCoordinator: several KV groups, or one with a sliding window or a state, over one pool.

See Coordinator. The tables of a request have equal length: a block's index gives the tokens that it holds. Blocks that a window
has passed are freed when the next tokens are planned, although a plan in flight may still read them: workers run plans in
order, so that plan has read them before a later one writes them.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain

from tetrad.engine_core_svc.core.kv_groups import KvGroup
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK, BlockPool
from tetrad.engine_core_svc.kv_cache.connector import KVConnector
from tetrad.engine_core_svc.kv_cache.coordinator import NewBlocks, Prefix
from tetrad.engine_core_svc.kv_cache.group_rules import FullAttention, GroupRules, SlidingWindow
from tetrad.engine_core_svc.kv_cache.prefix_hash import block_key
from tetrad.engine_core_svc.kv_cache.state import State, StateBlocks


class HybridCoordinator:
    """Coordinator of several groups, or of a window or state; see Coordinator.

    Args:
        groups: the KV groups; each has its own block tables.
        pool: allocates the blocks.
        connector: restores the contents that it has.
        block_size: tokens per block.
        max_step_tokens: maximum number of tokens that one step computes.
        keeps_states: whether states are also written for the prefix cache.
    """

    def __init__(
        self,
        groups: Sequence[KvGroup],
        pool: BlockPool,
        connector: KVConnector,
        block_size: int,
        *,
        max_step_tokens: int,
        keeps_states: bool,
    ) -> None:
        self._groups, self._pool, self._connector, self._block_size = groups, pool, connector, block_size
        self._max_step_tokens = max_step_tokens
        self._rules = [_rules_of(group, block_size) for group in groups]
        self._states = StateBlocks(pool)
        self._num_state_groups = sum(group.is_state for group in groups) if keeps_states else 0
        # A prefix of full attention may be cut at any block, so those groups are checked first.
        kinds = sorted(set(groups), key=lambda group: not group.keeps_all)
        self._kinds = [(_rules_of(kind, block_size), [i for i, group in enumerate(groups) if group == kind]) for kind in kinds]
        self._no_blocks: NewBlocks = ((),) * len(groups)
        self.num_groups = len(groups)
        self.num_passed = 0

    def find_prefix(self, block_hashes: Sequence[bytes]) -> Prefix:
        """Shorten the prefix by the rules of each kind of group until all kinds have it; return it."""
        length, longer = len(block_hashes), -1
        while length != longer:
            longer = length
            for rules, members in self._kinds:
                length = rules.longest_hit(partial(self._has, block_hashes, members), length)
        num_tokens, keys = length * self._block_size, list[bytes]()
        tables: list[list[int | None]] = [[NULL_BLOCK] * rules.num_passed(num_tokens) for rules in self._rules]
        for number, table in enumerate(tables):
            found = [block_key(block_hash, number) for block_hash in block_hashes[len(table) : length]]
            table.extend(map(self._pool.find, found))
            keys += found
        return Prefix(num_tokens, tables, keys)

    def blocks_for(self, num_tokens: int, num_computed_tokens: int = 0) -> int:
        """Return the sum over the groups."""
        size, step = self._block_size, self._max_step_tokens
        return sum(group.most_blocks(num_tokens, size, step, num_computed_tokens) for group in self._groups)

    def extend(self, request: Request, end: int) -> NewBlocks | None:
        """See Coordinator. Passed blocks are freed first, so that a moving window can allocate them again."""
        # A token that is not known yet may be rejected; computation then continues after the last known token.
        self._free_passed(request, min(request.num_computed_tokens, request.num_tokens - 1))
        return self.extend_ahead(request, end)

    def extend_ahead(self, request: Request, end: int) -> NewBlocks | None:
        """See Coordinator."""
        tables, pool = request.block_tables, self._pool
        missing = -(-end // self._block_size) - len(tables[0])
        if missing <= 0:
            return self._no_blocks
        needed = sum(rules.num_needed(missing) for rules in self._rules)
        if needed > pool.num_free:
            return None
        num_kept = min(missing - 1, (pool.num_free - needed) // self._num_state_groups) if self._num_state_groups else 0
        added: list[Sequence[int]] = []
        for group, table in zip(self._groups, tables, strict=True):
            if group.is_state:
                added.append(self._states.extend(table, missing, num_kept))
            else:
                added.append(pool.allocate(missing))
                table.extend(added[-1])
        return added

    def register(self, request: Request, first: int, end: int) -> Sequence[bytes]:
        """Cache each group's blocks under the group's own keys."""
        keys = []
        for number, table in enumerate(request.block_tables):
            for index in range(first, end):
                if table[index] == NULL_BLOCK:
                    continue
                keys.append(block_key(request.block_hashes[index], number))
                if self._groups[number].is_state:
                    self._states.add(table, index, keys[-1])
                else:
                    self._pool.cache(table[index], keys[-1])
        return keys

    def note_sent(self) -> None:
        """Cache the states that the plan writes, so that other requests find them."""
        self.num_passed += self._states.note_sent()

    def keys_of(self, block_hash: bytes) -> Sequence[bytes]:
        """Return one key per group."""
        return [block_key(block_hash, number) for number in range(self.num_groups)]

    def blocks_of(self, request: Request) -> Sequence[int]:
        """Return the blocks of all tables."""
        return [block for block in chain.from_iterable(request.block_tables) if block != NULL_BLOCK]

    def _has(self, block_hashes: Sequence[bytes], groups: Sequence[int], index: int) -> bool:
        """Return whether a block is cached in all of these groups."""
        keys = [block_key(block_hashes[index], number) for number in groups]
        return all(self._pool.find(key) is not None or self._connector.has(key) for key in keys)

    def _free_passed(self, request: Request, num_computed_tokens: int) -> None:
        """Free the blocks before every window, the last block of each table first."""
        for table, rules in zip(request.block_tables, self._rules, strict=True):
            freed = []
            for index in range(min(rules.num_passed(num_computed_tokens), len(table)) - 1, -1, -1):
                if table[index] == NULL_BLOCK:
                    break
                freed.append(table[index])
                table[index] = NULL_BLOCK
            if freed:
                self.num_passed += len(freed)
                self._pool.free(freed)


def _rules_of(group: KvGroup, block_size: int) -> GroupRules:
    if group.is_state:
        return State(group, block_size)
    return FullAttention() if group.sliding_window is None else SlidingWindow(group, block_size)
