"""Prefix hashes: a name for the content of a full block and everything before it.

H_i = sha256(H_{i-1}, token ids of block i, extra keys). The cache salt is an extra key of the first block alone: it reaches all
later ones through the chain. Knows nothing of the pool. The chain is the same in every process and language.
"""

import hashlib
from array import array

from tetrad.engine_core_svc.core.request import Request

ROOT_HASH = hashlib.sha256(b"tetrad prefix cache").digest()
"""Stands for the empty prefix."""


def extend_block_hashes(request: Request, block_size: int) -> None:
    """Append the hashes of blocks that have become full since the last call."""
    hashes = request.block_hashes
    for index in range(len(hashes), request.num_tokens // block_size):
        parent = hashes[-1] if hashes else ROOT_HASH
        tokens = request.token_ids[index * block_size : (index + 1) * block_size]
        hashes.append(hash_block(parent, tokens, _extra_keys(request, index)))


def hash_block(parent: bytes, token_ids: list[int], extra_keys: bytes = b"") -> bytes:
    """Return the 32-byte hash of one full block behind `parent`."""
    return hashlib.sha256(parent + array("I", token_ids).tobytes() + extra_keys).digest()


def _extra_keys(request: Request, index: int) -> bytes:
    if index == 0 and request.cache_salt:
        return b"cache_salt:" + request.cache_salt.encode()
    return b""
