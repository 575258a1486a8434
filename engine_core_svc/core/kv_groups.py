"""KV groups: the layers of a model that share one block table for each request.

A full-attention group keeps all blocks of a sequence, a sliding-window group only those inside its window, a group of layers
with states only the last one: it holds the state after the last token. All groups take their blocks from one pool: a
block has the same number of bytes and of tokens in every group, and belongs to one group at a time (vLLM's hybrid KV cache).
Knows sizes; knows no blocks and no requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_TOKENS_IN_FLIGHT = 16
"""Upper limit of the tokens of a decoding sequence that plans in flight compute."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One KV group of a model.

    Attributes:
        sliding_window: number of keys that a query attends to, its own included; None: all.
        is_state: whether its layers have a state instead of keys.
    """

    sliding_window: int | None = None
    is_state: bool = False

    @property
    def keeps_all(self) -> bool:
        """Whether the group keeps all blocks of a sequence."""
        return self.sliding_window is None and not self.is_state

    def num_passed(self, num_computed_tokens: int, block_size: int) -> int:
        """Return how many leading blocks no query at position `num_computed_tokens` or later reads."""
        if self.is_state:
            return max(num_computed_tokens - 1, 0) // block_size
        if self.sliding_window is None:
            return 0
        return max(num_computed_tokens - self.sliding_window + 1, 0) // block_size

    def most_blocks(self, num_tokens: int, block_size: int, max_step_tokens: int, num_computed_tokens: int = 0) -> int:
        """Return the maximum number of blocks that a sequence holds at one time until it has `num_tokens` tokens.

        A step holds the window of its first token and the tokens that it computes, which are at most `max_step_tokens`; and one
        more block, because neither end need lie at a block's edge.

        Args:
            num_tokens: number of tokens at the end.
            block_size: tokens per block.
            max_step_tokens: maximum number of tokens of a sequence that one step computes.
            num_computed_tokens: number of computed tokens at the beginning.
        """
        num_blocks = -(-num_tokens // block_size) - self.num_passed(num_computed_tokens, block_size)
        if self.is_state:
            # A chunk needs its first and its last block; a decode needs the blocks of tokens that are not known yet.
            return min(num_blocks, -(-_TOKENS_IN_FLIGHT // block_size) + 1)
        if self.sliding_window is None:
            return num_blocks
        return min(num_blocks, -(-(self.sliding_window - 1 + max_step_tokens) // block_size) + 1)


def blocks_of_sequence(groups: Sequence[KvGroup], num_tokens: int, block_size: int, max_step_tokens: int) -> int:
    """Return the maximum number of blocks, over all groups, that a sequence holds until it has `num_tokens` tokens."""
    return sum(group.most_blocks(num_tokens, block_size, max_step_tokens) for group in groups)


ONE_GROUP: Sequence[KvGroup] = (KvGroup(),)
"""The groups of a model whose layers all attend to all keys."""
