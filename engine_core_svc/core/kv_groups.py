"""KV groups: the layers of a model that share one block table for each request.

A full-attention group keeps all blocks of a sequence, a sliding-window group only those that its window still reaches, a group
of layers with states only the last one: it has the state behind the last token. All groups take their blocks from one pool: a
block has the same number of bytes and of tokens in every group, and belongs to one group at a time (vLLM's hybrid KV cache).
Knows sizes; knows no blocks and no requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_TOKENS_IN_FLIGHT = 16
"""More than plans in flight compute of a sequence that decodes."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One group.

    Attributes:
        sliding_window: keys that a query sees, its own included; None: all.
        is_state: its layers have a state instead of keys.
    """

    sliding_window: int | None = None
    is_state: bool = False

    @property
    def keeps_all(self) -> bool:
        """Whether all blocks of a sequence are kept."""
        return self.sliding_window is None and not self.is_state

    def num_passed(self, num_computed_tokens: int, block_size: int) -> int:
        """Return how many leading blocks no query reads whose position is `num_computed_tokens` or later."""
        if self.is_state:
            return max(num_computed_tokens - 1, 0) // block_size
        if self.sliding_window is None:
            return 0
        return max(num_computed_tokens - self.sliding_window + 1, 0) // block_size

    def most_blocks(self, num_tokens: int, block_size: int, max_step_tokens: int, num_computed_tokens: int = 0) -> int:
        """Return the most blocks that a sequence holds at one time on its way to `num_tokens`.

        A step holds the window of its first token and the tokens that it computes, which are at most `max_step_tokens`; one
        more block, because neither end has to lie at a block's edge.

        Args:
            num_tokens: at the end.
            block_size: tokens per block.
            max_step_tokens: maximum number of tokens of a sequence that one step computes.
            num_computed_tokens: at the beginning.
        """
        num_blocks = -(-num_tokens // block_size) - self.num_passed(num_computed_tokens, block_size)
        if self.is_state:
            # Of a chunk the first and the last one; of a decode those whose tokens are not known yet.
            return min(num_blocks, -(-_TOKENS_IN_FLIGHT // block_size) + 1)
        if self.sliding_window is None:
            return num_blocks
        return min(num_blocks, -(-(self.sliding_window - 1 + max_step_tokens) // block_size) + 1)


def blocks_of_sequence(groups: Sequence[KvGroup], num_tokens: int, block_size: int, max_step_tokens: int) -> int:
    """Return the most blocks, over all groups, that a sequence holds at one time on its way to `num_tokens`."""
    return sum(group.most_blocks(num_tokens, block_size, max_step_tokens) for group in groups)


ONE_GROUP: Sequence[KvGroup] = (KvGroup(),)
"""Of a model whose layers all see all keys."""
