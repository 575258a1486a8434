"""GroupRules: the lifetime of blocks in a KV group, by the kind of its layers. Used by HybridCoordinator.

state.py has the rules of groups of states.
"""

from collections.abc import Callable
from typing import Protocol

from tetrad.engine_core_svc.core.kv_groups import KvGroup


class GroupRules(Protocol):
    """The lifetime of blocks in a group."""

    def num_passed(self, num_computed_tokens: int) -> int:
        """Return the number of leading blocks that are not read once `num_computed_tokens` tokens are computed."""

    def num_needed(self, num_blocks: int) -> int:
        """Return how many of `num_blocks` further places of a table need a block."""

    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> int:
        """Return the length of the longest prefix, up to `most` blocks, whose blocks for the next token are all cached."""


class FullAttention:
    """The rules of a group whose queries attend to all keys before them: every block is kept until its request ends."""

    def num_passed(self, num_computed_tokens: int) -> int:  # noqa: ARG002 - of the protocol
        """Return 0: every block is read until the request ends."""
        return 0

    def num_needed(self, num_blocks: int) -> int:
        """Return `num_blocks`: new tokens need all their blocks."""
        return num_blocks

    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> int:
        """Return the number of cached blocks before the first one that is not cached."""
        return next((index for index in range(most) if not is_cached(index)), most)


class SlidingWindow:
    """The rules of a group whose queries attend only to the last keys.

    A block is passed when it lies wholly before the window of the next token to compute; its entry in the table becomes the
    null block. So a prefix needs only its last ceil((window - 1) / block_size) blocks (vLLM's SlidingWindowManager).

    Args:
        group: the KV group, which has a window.
        block_size: tokens per block.
    """

    def __init__(self, group: KvGroup, block_size: int) -> None:
        self._group, self._block_size = group, block_size

    def num_passed(self, num_computed_tokens: int) -> int:
        """Return the number of leading blocks before the window of the token at position `num_computed_tokens`."""
        return self._group.num_passed(num_computed_tokens, self._block_size)

    def num_needed(self, num_blocks: int) -> int:
        """Return `num_blocks`: new tokens need all their blocks."""
        return num_blocks

    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> int:
        """Search backwards from the last block until all blocks of a window are cached.

        A block that is not cached ends every prefix that needs it, so the search continues with prefixes that end before it.
        """
        end = index = most
        while index > self.num_passed(end * self._block_size):
            index -= 1
            if not is_cached(index):
                end = index
        return end
