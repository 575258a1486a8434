"""BlockLoad: blocks of a request that a connector fetches from elsewhere while the request waits."""

from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class BlockLoad:
    """A transfer under way; it owns its blocks, so that the request may end before it.

    Attributes:
        request: whose prefix it is; its key names the transfer.
        num_computed_tokens: tokens of the cached prefix before it; whole blocks.
        first: index of the first block to fetch in the sequence.
        tables: where to: new blocks of each KV group, of equal number.
        prefix_blocks: cached blocks before them, kept until the transfer has ended.
    """

    request: Request
    num_computed_tokens: int
    first: int
    tables: Sequence[Sequence[int]]
    prefix_blocks: Sequence[int]

    @property
    def num_blocks(self) -> int:
        """Blocks of the sequence that are fetched."""
        return len(self.tables[0])

    @property
    def blocks(self) -> list[int]:
        """All blocks that it owns, those of the sequence's head first."""
        return [*self.prefix_blocks, *(block for row in zip(*self.tables, strict=True) for block in row)]
