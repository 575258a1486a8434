"""Block keys: this process's own names for the full blocks of a prompt, each for a block and all before it.

Cheaper than the engine's hashes, which are SHA-256, and told to nobody: they differ from process to process. That two prefixes
share a key is as good as impossible, and would only send a request to another engine.
"""

from collections.abc import Iterator


def first_parent(cache_salt: str) -> int:
    """Return what stands before the first block: prompts with different salts share nothing."""
    return hash(("cache_salt", cache_salt))


def block_keys(token_ids: bytes, block_size: int, parent: int) -> Iterator[int]:
    """Yield the key of each full block.

    Args:
        token_ids: u32 column.
        block_size: tokens per block.
        parent: key of the block before the first, or `first_parent`.
    """
    size = 4 * block_size
    for end in range(size, len(token_ids) + 1, size):
        parent = hash((parent, token_ids[end - size : end]))
        yield parent
