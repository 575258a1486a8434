"""Block keys: computes process-local keys of the full blocks of a prompt, each for a block and all blocks before it.

Cheaper than the engine core's SHA-256 hashes, and private: they differ between processes. A collision of two prefixes is
practically impossible, and would only route a request to another engine core.
"""

from collections.abc import Iterator


def first_parent(cache_salt: str) -> int:
    """Return the parent key of the first block; prompts with different salts share no blocks."""
    return hash(("cache_salt", cache_salt))


def salt_of(cache_salt: str, lora_name: str) -> str:
    """Return the salt of prompts with this cache salt and this adapter."""
    return f"{lora_name}\0{cache_salt}" if lora_name else cache_salt


def block_keys(token_ids: bytes, block_size: int, parent: int) -> Iterator[int]:
    """Yield the key of each full block.

    Args:
        token_ids: the ids as a u32 column.
        block_size: tokens per block.
        parent: key of the block before the first one, or the result of `first_parent`.
    """
    size = 4 * block_size
    for end in range(size, len(token_ids) + 1, size):
        parent = hash((parent, token_ids[end - size : end]))
        yield parent
