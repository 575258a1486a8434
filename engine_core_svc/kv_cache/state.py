"""State: the rules of a KV group whose layers keep a state of fixed size; a block holds the state after its last token.

Used by HybridCoordinator; see GroupRules. The next token reads the state after the token before it, in that token's block, so a
running request needs only its last block, and a cached prefix only its last one. All other entries of a block table are the
null block. As far as blocks are free, a plan also writes the states at the ends of the full blocks that it passes, for the
prefix cache; these blocks are freed once the plan is sent. A state cannot be read in the step that writes it, unlike keys and
values: a request that shares such a block is planned later, and workers run plans in order.
"""

from collections.abc import Callable, Sequence

from tetrad.engine_core_svc.core.kv_groups import KvGroup
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK, BlockPool


class State:
    """The rules of states; see GroupRules.

    Args:
        group: the KV group, which has states.
        block_size: tokens per block.
    """

    def __init__(self, group: KvGroup, block_size: int) -> None:
        self._group, self._block_size = group, block_size

    def num_passed(self, num_computed_tokens: int) -> int:
        """Return the number of blocks before the block of the last computed token."""
        return self._group.num_passed(num_computed_tokens, self._block_size)

    def num_needed(self, num_blocks: int) -> int:
        """Return 1, since only the last of the further places needs a block; 0 if there are none."""
        return min(num_blocks, 1)

    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> int:
        """Return the length of the longest prefix whose last block is cached."""
        return next((end for end in range(most, 0, -1) if is_cached(end - 1)), 0)


class StateBlocks:
    """Blocks of the plan being made that enter the prefix cache as soon as it is sent.

    Args:
        pool: the pool of all blocks.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._written: list[tuple[list[int], int, bytes]] = []
        self._passed: list[tuple[list[int], int]] = []

    def extend(self, table: list[int], num_blocks: int, num_kept: int) -> Sequence[int]:
        """Append `num_blocks` entries to a table and return them; the last one and `num_kept` before it are new blocks."""
        if num_blocks > 1 and table:
            self._passed.append((table, len(table) - 1))
        added = [NULL_BLOCK] * (num_blocks - 1 - num_kept) + self._pool.allocate(num_kept + 1)
        table.extend(added)
        return added

    def add(self, table: list[int], index: int, key: bytes) -> None:
        """Note that the state at the end of a full block is written by the plan being made or an earlier one."""
        self._written.append((table, index, key))
        if index < len(table) - 1:
            self._passed.append((table, index))

    def note_sent(self) -> int:
        """Cache the states that the plan writes; free the blocks that only the cache needs, and return their number."""
        for table, index, key in self._written:
            self._pool.cache(table[index], key)
        freed = []
        for table, index in self._passed:
            if table[index] != NULL_BLOCK:
                freed.append(table[index])
                table[index] = NULL_BLOCK
        self._written.clear()
        self._passed.clear()
        self._pool.free(freed)
        return len(freed)
