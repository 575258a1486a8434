"""FullAttention: the rules of a KV group whose queries see all keys before them.

Used by HybridCoordinator; see GroupRules. Every block is kept until its request ends.
"""

from collections.abc import Callable


class FullAttention:
    """See GroupRules."""

    def num_passed(self, num_computed_tokens: int) -> int:  # noqa: ARG002 - of the protocol
        """Return 0."""
        return 0

    def num_needed(self, num_blocks: int) -> int:
        """Return all of them."""
        return num_blocks

    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> int:
        """Walk from the first block to the first one that is not cached."""
        return next((index for index in range(most) if not is_cached(index)), most)
