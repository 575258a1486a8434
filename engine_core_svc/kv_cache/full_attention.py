"""FullAttention: the rules of a KV group whose queries attend to all keys before them.

Used by HybridCoordinator; see GroupRules. Every block is kept until its request ends.
"""

from collections.abc import Callable


class FullAttention:
    """The rules of full attention; see GroupRules."""

    def num_passed(self, num_computed_tokens: int) -> int:  # noqa: ARG002 - of the protocol
        """Return 0: every block is read until the request ends."""
        return 0

    def num_needed(self, num_blocks: int) -> int:
        """Return `num_blocks`: new tokens need all their blocks."""
        return num_blocks

    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> int:
        """Return the number of cached blocks before the first one that is not cached."""
        return next((index for index in range(most) if not is_cached(index)), most)
