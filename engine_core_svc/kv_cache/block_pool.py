"""Block pool: allocates and frees KV blocks.

Called by the cache manager only. Knows block ids, reference counts and hashes; knows nothing of requests, tokens' meaning or
devices. Invariant: every block but the null block is either in the free queue or has at least one reference. Rules as in
vLLM's BlockPool: a hash is evicted when its block is allocated again, not when it is freed.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from tetrad.engine_core_svc.kv_cache.connector import KVConnector

NULL_BLOCK = 0
"""Id of a block that is never allocated, freed or cached; it fills holes in block tables."""


class BlockWatch(Protocol):
    """Takes note of blocks."""

    def note_allocated(self, blocks: Sequence[int]) -> None:
        """Note that blocks are allocated, which ends what was in them."""

    def note_touched(self, blocks: Iterable[int]) -> None:
        """Note that a request uses the contents of blocks."""

    def forget_all(self) -> None:
        """Forget all blocks: the prefix cache is emptied."""


class NoBlockWatch:
    """Takes no note."""

    def note_allocated(self, blocks: Sequence[int]) -> None:
        """Do nothing."""

    def note_touched(self, blocks: Iterable[int]) -> None:
        """Do nothing."""

    def forget_all(self) -> None:
        """Do nothing."""


class FreeBlockQueue:
    """The free blocks in order of eviction: a doubly linked list over block ids, so that any block is removed in O(1).

    Args:
        num_blocks: number of blocks, with ids 0 .. num_blocks - 1; all are free at first, in the order of their ids.
    """

    def __init__(self, num_blocks: int) -> None:
        # A sentinel after the last id closes the ring: its successor is the head, its predecessor the tail.
        self._sentinel = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]
        self._size = num_blocks

    def __len__(self) -> int:
        return self._size

    def popleft(self) -> int:
        """Remove and return the block that is evicted next; IndexError if no block is free."""
        block = self._next[self._sentinel]
        if block == self._sentinel:
            raise IndexError("no free block")
        self.remove(block)
        return block

    def remove(self, block: int) -> None:
        """Remove `block`, which must be free, from any place."""
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._size -= 1

    def append(self, block: int) -> None:
        """Put `block` at the end: it is evicted last."""
        self._insert(self._previous[self._sentinel], block)

    def prepend(self, block: int) -> None:
        """Put `block` at the front: it is evicted next."""
        self._insert(self._sentinel, block)

    def to_list(self) -> list[int]:
        """Return the free blocks in order of eviction."""
        blocks, block = [], self._next[self._sentinel]
        while block != self._sentinel:
            blocks.append(block)
            block = self._next[block]
        return blocks

    def _insert(self, before: int, block: int) -> None:
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._size += 1


class BlockPool:
    """All KV blocks of one engine.

    Args:
        num_blocks: number of blocks, the null block included; at least 2.
        connector: notified of evicted and of forgotten contents.
        watch: takes note of how blocks are used.

    Attributes:
        num_cached, num_evicted: number of blocks whose content was registered, and evicted, since start.
        num_free_cached: number of free blocks whose content can still be found.
    """

    def __init__(self, num_blocks: int, connector: KVConnector | None = None, watch: BlockWatch | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks, one of them the null block; got {num_blocks}")
        self.num_blocks = num_blocks
        self._connector = connector or KVConnector()
        self._watch: BlockWatch = NoBlockWatch() if watch is None else watch
        self._free = FreeBlockQueue(num_blocks)
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        # Several blocks may have the same content: if two requests compute it at the same time, both blocks stay.
        self._blocks_of: dict[bytes, list[int]] = {}
        self._free.remove(NULL_BLOCK)
        self.num_cached = self.num_evicted = self.num_free_cached = 0

    @property
    def num_free(self) -> int:
        """The number of blocks that can be allocated."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """The share of the usable blocks that is in use, 0 to 1."""
        return 1.0 - self.num_free / (self.num_blocks - 1)

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks with one reference each, and evict their contents; IndexError if fewer are free."""
        if count > len(self._free):
            raise IndexError(f"{count} blocks wanted, {len(self._free)} free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._evict(block)
            self._references[block] = 1
        self._watch.note_allocated(blocks)
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; free blocks leave the queue."""
        touched = tuple(blocks)
        self._watch.note_touched(touched)
        for block in touched:
            if self._references[block] == 0:
                self._free.remove(block)
                self.num_free_cached -= self._hash_of[block] is not None
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Remove one reference of each block, in the order given (a sequence passes its table in reverse).

        Blocks without references become free: hashed ones are evicted last, unhashed ones are allocated first.
        """
        released = []
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] == 0:
                released.append(block)
        for block in released:
            if self._hash_of[block] is not None:
                self._free.append(block)
                self.num_free_cached += 1
        for block in reversed([block for block in released if self._hash_of[block] is None]):
            self._free.prepend(block)

    def cache(self, block: int, block_hash: bytes) -> None:
        """Register the content of a full block, so that other requests find it."""
        if self._hash_of[block] is None:
            self._hash_of[block] = block_hash
            self.num_cached += 1
            self.num_free_cached += self._references[block] == 0
            self._blocks_of.setdefault(block_hash, []).append(block)

    def find(self, block_hash: bytes) -> int | None:
        """Return a block with this content, or None."""
        blocks = self._blocks_of.get(block_hash)
        return blocks[0] if blocks else None

    def num_references(self, block: int) -> int:
        """Return the number of references to a block."""
        return self._references[block]

    def free_blocks(self) -> list[int]:
        """Return the free blocks in order of eviction."""
        return self._free.to_list()

    def forget(self, block_hash: bytes) -> None:
        """Remove this content from the prefix cache and from connectors; references to its blocks stay valid."""
        for block in self._blocks_of.pop(block_hash, ()):
            self._hash_of[block] = None
            if self._references[block] == 0:
                self._free.remove(block)
                self._free.prepend(block)
                self.num_free_cached -= 1
        self._connector.removed(block_hash)

    def forget_hashes(self) -> None:
        """Empty the prefix cache; references stay as they are."""
        self._hash_of = [None] * self.num_blocks
        self._blocks_of = {}
        self.num_free_cached = 0
        self._connector.cleared()
        self._watch.forget_all()

    def _evict(self, block: int) -> None:
        """Forget the content of a block that leaves the free queue."""
        block_hash = self._hash_of[block]
        if block_hash is None:
            return
        self._hash_of[block] = None
        self.num_evicted += 1
        self.num_free_cached -= 1
        blocks = self._blocks_of[block_hash]
        blocks.remove(block)
        if not blocks:
            del self._blocks_of[block_hash]
            lost = self._connector.evicted(block_hash, block)
            if lost is not None and lost not in self._blocks_of:
                self._connector.removed(lost)
