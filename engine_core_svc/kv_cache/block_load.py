"""BlockLoad: blocks that a connector fetches for a waiting request."""

from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class BlockLoad:
    """A transfer in progress; it owns its blocks, so the request may end before it.

    Attributes:
        request: the request whose prefix is fetched; its key names the transfer.
        num_computed_tokens: number of tokens of the cached prefix before the fetched blocks; whole blocks.
        first: index in the sequence of the first block to fetch.
        tables: the new blocks to fetch into, by KV group, equally many in each.
        prefix_blocks: cached blocks before them, kept until the transfer has ended.
    """

    request: Request
    num_computed_tokens: int
    first: int
    tables: Sequence[Sequence[int]]
    prefix_blocks: Sequence[int]

    @property
    def num_blocks(self) -> int:
        """The number of blocks of the sequence that are fetched."""
        return len(self.tables[0])

    @property
    def blocks(self) -> list[int]:
        """All blocks that the transfer owns, in the order of the sequence."""
        return [*self.prefix_blocks, *(block for row in zip(*self.tables, strict=True) for block in row)]
