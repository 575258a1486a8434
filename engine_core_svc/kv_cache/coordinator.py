"""Coordinator: keeps the block tables of all KV groups of a request in step.

Chosen at construction, as in vLLM: UnitaryCoordinator for one group that keeps all its blocks, HybridCoordinator for several
groups, for a sliding window or for states. Called by the cache manager, which knows statistics, events and pending writes; a
coordinator knows the pool, groups and tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK

NewBlocks = Sequence[Sequence[int]]
"""Blocks that were appended to each group's table."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The cached blocks that a request begins with.

    Attributes:
        num_tokens: of the prefix; whole blocks.
        tables: one per group, of equal length. NULL_BLOCK: a window or a state has passed the block, it is not read; None: its
            content is at a connector.
        keys: of the blocks in the tables that are not NULL_BLOCK, table after table; see prefix_hash.block_key.
    """

    num_tokens: int
    tables: Sequence[Sequence[int | None]]
    keys: Sequence[bytes]

    @property
    def blocks(self) -> list[int | None]:
        """Those blocks, in the order of the keys."""
        return [block for table in self.tables for block in table if block != NULL_BLOCK]


class Coordinator(Protocol):
    """The interface of KV groups for the cache manager.

    Attributes:
        num_groups: how many there are.
        num_passed: blocks freed because a window had passed them, since start.
    """

    num_groups: int
    num_passed: int

    def find_prefix(self, block_hashes: Sequence[bytes]) -> Prefix:
        """Return the longest prefix of these blocks whose content all groups have, each as far as its layers read it."""

    def blocks_for(self, num_tokens: int, num_computed_tokens: int = 0) -> int:
        """Return the most blocks, over all groups, that a sequence holds between so many computed tokens and `num_tokens`."""

    def extend(self, request: Request, end: int) -> NewBlocks | None:
        """Free what windows have passed and append blocks up to token `end`; return those, None if too few are free."""

    def register(self, request: Request, first: int, end: int) -> Sequence[bytes]:
        """Cache blocks `first` to `end` (exclusive) of a request in every group that holds them; return their keys.

        States are cached when the plan is sent.
        """

    def note_sent(self) -> None:
        """The plan that was being made is on its way."""

    def keys_of(self, block_hash: bytes) -> Sequence[bytes]:
        """Return the key of a block's content in each group."""

    def blocks_of(self, request: Request) -> Sequence[int]:
        """Return the blocks that a request holds, in the order of its tables."""
