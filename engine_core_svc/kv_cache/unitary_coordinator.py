"""UnitaryCoordinator: the coordinator for one group that keeps all blocks of a sequence, as in most models.

See Coordinator. A prefix consists of consecutive cached blocks from the first one on, so every shorter run is a prefix, too.
"""

from collections.abc import Sequence

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.block_pool import BlockPool
from tetrad.engine_core_svc.kv_cache.connector import KVConnector
from tetrad.engine_core_svc.kv_cache.coordinator import NewBlocks, Prefix

_NO_BLOCKS: NewBlocks = ((),)


class UnitaryCoordinator:
    """Coordinator of one group that keeps all blocks; see Coordinator.

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
