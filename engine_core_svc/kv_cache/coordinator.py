"""Coordinator: manages the block tables of all KV groups of a request together.

Chosen at construction, as in vLLM: UnitaryCoordinator for one group that keeps all its blocks, as in most models,
HybridCoordinator for several groups, for a sliding window or for states. Called by the cache manager, which knows statistics,
events and pending writes; a coordinator knows the pool, groups and tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK, BlockPool
from tetrad.engine_core_svc.kv_cache.connector import KVConnector

NewBlocks = Sequence[Sequence[int]]
"""The blocks that were appended to each group's table."""


_NO_BLOCKS: NewBlocks = ((),)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The cached blocks that a request begins with.

    Attributes:
        num_tokens: number of tokens of the prefix; whole blocks.
        tables: one block table per group, of equal length. NULL_BLOCK: the block is not read any more, since a window or a
            state has passed it; None: a connector has its content.
        keys: keys of the blocks in the tables that are not NULL_BLOCK, table after table; see prefix_hash.block_key.
    """

    num_tokens: int
    tables: Sequence[Sequence[int | None]]
    keys: Sequence[bytes]

    @property
    def blocks(self) -> list[int | None]:
        """The blocks in the tables that are not NULL_BLOCK, in the order of the keys."""
        return [block for table in self.tables for block in table if block != NULL_BLOCK]


class Coordinator(Protocol):
    """The interface for the cache manager.

    Attributes:
        num_groups: number of KV groups.
        num_passed: number of blocks freed because a window had passed them, since start.
    """

    num_groups: int
    num_passed: int

    def find_prefix(self, block_hashes: Sequence[bytes]) -> Prefix:
        """Return the longest prefix for which all groups have the blocks that their layers read."""

    def blocks_for(self, num_tokens: int, num_computed_tokens: int = 0) -> int:
        """Return the maximum number of blocks, over all groups, that a sequence holds until it has `num_tokens` tokens.

        It begins with `num_computed_tokens` computed tokens.
        """

    def extend(self, request: Request, end: int) -> NewBlocks | None:
        """Free the blocks that windows have passed, and append blocks up to token `end`.

        Returns the appended blocks; None if too few are free.
        """

    def extend_ahead(self, request: Request, end: int) -> NewBlocks | None:
        """Append blocks up to token `end` in the plan that computes the tokens before them; see `extend`.

        Frees no blocks: that plan still writes and reads them, and a block freed in it may be saved before that.
        """

    def register(self, request: Request, first: int, end: int) -> Sequence[bytes]:
        """Cache blocks `first` to `end` (exclusive) of a request in every group that holds them; return their keys.

        Blocks of states are cached when the plan is sent.
        """

    def note_sent(self) -> None:
        """Note that the plan that was being made is complete and will be sent."""

    def keys_of(self, block_hash: bytes) -> Sequence[bytes]:
        """Return the key of a block's content, for each group."""

    def blocks_of(self, request: Request) -> Sequence[int]:
        """Return the blocks that a request holds, in the order of its tables."""


class UnitaryCoordinator:
    """Coordinator of one group that keeps all blocks of a sequence; see Coordinator.

    A prefix consists of consecutive cached blocks from the first one on, so every shorter run is a prefix, too.

    Args:
        pool: allocates the blocks.
        connector: restores the contents that it has.
        block_size: tokens per block.
    """

    num_groups = 1
    num_passed = 0

    def __init__(self, pool: BlockPool, connector: KVConnector, block_size: int) -> None:
        self._pool, self._connector, self._block_size = pool, connector, block_size

    def find_prefix(self, block_hashes: Sequence[bytes]) -> Prefix:
        """Return the cached blocks before the first one that is not cached."""
        table: list[int | None] = []
        for block_hash in block_hashes:
            block = self._pool.find(block_hash)
            if block is None and not self._connector.has(block_hash):
                break
            table.append(block)
        return Prefix(len(table) * self._block_size, [table], block_hashes[: len(table)])

    def blocks_for(self, num_tokens: int, num_computed_tokens: int = 0) -> int:  # noqa: ARG002 - of the protocol
        """Return the number of blocks of the whole sequence."""
        return -(-num_tokens // self._block_size)

    def extend(self, request: Request, end: int) -> NewBlocks | None:
        """Append blocks; see Coordinator. No block is passed."""
        table = request.block_tables[0]
        missing = -(-end // self._block_size) - len(table)
        if missing <= 0:
            return _NO_BLOCKS
        if missing > self._pool.num_free:
            return None
        added = self._pool.allocate(missing)
        table.extend(added)
        return (added,)

    extend_ahead = extend

    def register(self, request: Request, first: int, end: int) -> Sequence[bytes]:
        """Cache blocks under their hashes."""
        table, hashes = request.block_tables[0], request.block_hashes[first:end]
        for block, block_hash in zip(table[first:end], hashes, strict=True):
            self._pool.cache(block, block_hash)
        return hashes

    def note_sent(self) -> None:
        """Do nothing."""

    def keys_of(self, block_hash: bytes) -> Sequence[bytes]:
        """Return the hash itself as the only key."""
        return (block_hash,)

    def blocks_of(self, request: Request) -> Sequence[int]:
        """Return the blocks of the request's only table."""
        return request.block_tables[0] if request.block_tables else ()
