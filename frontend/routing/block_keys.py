"""Block keys: computes process-local keys of the full blocks of a prompt, each for a block and all blocks before it.

Cheaper than the engine core's SHA-256 hashes, and private: they differ between processes. A collision of two prefixes is
practically impossible, and would only route a request to another engine core.
"""

from collections.abc import Iterator, Sequence

from tetrad.frontend.media.features import MediaFeature


def first_parent(cache_salt: str) -> int:
    """Return the parent key of the first block; prompts with different salts share no blocks."""
    return hash(("cache_salt", cache_salt))


def salt_of(cache_salt: str, lora_name: str) -> str:
    """Return the salt of prompts with this cache salt and this adapter."""
    return f"{lora_name}\0{cache_salt}" if lora_name else cache_salt


def media_keys(features: Sequence[MediaFeature], block_size: int, num_tokens: int) -> list[bytes]:
    """Return the identifiers of the images in each full block, each followed by a zero byte; [] for a prompt without images.

    The placeholders of all images have the same id, so blocks of ids alone would be equal for different images. The form is
    that of an engine core's events (KvBlocksStored.extra_keys).
    """
    if not features:
        return []
    keys = [b""] * (num_tokens // block_size)
    for feature in features:
        # An item without placeholders, to which all tokens attend, is a key of the first block.
        first, last = feature.offset // block_size, max(feature.end - 1, feature.offset) // block_size
        for block in range(first, min(last + 1, len(keys))):
            keys[block] += feature.identifier.encode() + b"\0"
    return keys


def block_keys(token_ids: bytes, block_size: int, parent: int, extra_keys: Sequence[bytes] = ()) -> Iterator[int]:
    """Yield the key of each full block.

    Args:
        token_ids: the ids as a u32 column.
        block_size: tokens per block.
        parent: key of the block before the first one, or the result of `first_parent`.
        extra_keys: the images in each block; see `media_keys`. Empty: there are none in any block.
    """
    size = 4 * block_size
    for place, end in enumerate(range(size, len(token_ids) + 1, size)):
        extra = extra_keys[place] if place < len(extra_keys) else b""
        content = token_ids[end - size : end]
        parent = hash((parent, content, extra)) if extra else hash((parent, content))
        yield parent
