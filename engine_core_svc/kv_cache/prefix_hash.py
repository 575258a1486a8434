"""Prefix hashes: identify the content of a full block together with everything before it.

H_i = sha256(H_{i-1}, token ids of block i, extra keys). The cache salt and the adapter (name, path and the hash of its files)
are extra keys of the first block only: the chain carries them to all later blocks. Vectors in place of token ids, and media
with their distance from the block's start, are extra keys of their block; media without tokens, to which all tokens attend, are
extra keys of the first one. Knows nothing of the pool. The chain is the same in
every process and language.
"""

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from tetrad.engine_core_svc.core.media import MediaSpan
from tetrad.engine_core_svc.core.request import Request

ROOT_HASH = hashlib.sha256(b"tetrad prefix cache").digest()
"""Hash of the empty prefix."""


def extend_block_hashes(request: Request, block_size: int) -> None:
    """Append the hashes of blocks that have become full since the last call."""
    hashes = request.block_hashes
    for index in range(len(hashes), request.num_tokens // block_size):
        parent = hashes[-1] if hashes else ROOT_HASH
        tokens = request.token_ids[index * block_size : (index + 1) * block_size]
        hashes.append(hash_block(parent, tokens, _extra_keys(request, index, block_size)))


def hash_block(parent: bytes, token_ids: list[int], extra_keys: bytes) -> bytes:
    """Return the 32-byte hash of one full block after the block with hash `parent`."""
    return hashlib.sha256(parent + array("I", token_ids).tobytes() + extra_keys).digest()


def media_of_block(request: Request, index: int, block_size: int) -> Sequence[MediaSpan]:
    """Return the media that have tokens in a block; the first block has those without tokens as well."""
    media, start = request.payload.media, index * block_size
    first = bisect_right(media, start, key=attrgetter("end")) if index else 0
    return media[first : bisect_left(media, start + block_size, key=attrgetter("offset"))]


def block_key(block_hash: bytes, group: int) -> bytes:
    """Return the cache key of a KV group's block with this content (vLLM appends the group's number, too).

    The first group's key is the hash itself, so KV events, which contain hashes, describe that group's blocks.
    """
    return block_hash + group.to_bytes(4, "big") if group else block_hash


def _extra_keys(request: Request, index: int, block_size: int) -> bytes:
    embeds = request.payload.prompt_embeds
    digest = embeds.digest_of(index * block_size, (index + 1) * block_size) if embeds is not None else b""
    extra = b"prompt_embeds:" + digest if digest else b""
    for span in media_of_block(request, index, block_size) if request.payload.media else ():
        place = span.offset - index * block_size
        flags = span.is_embed[max(-place, 0) : block_size - place]
        extra += b"mm:" + f"{span.identifier}\0{span.content_hash}\0{place}\0{len(flags)}\0".encode() + flags
    if index == 0 and request.adapter is not None:
        ref = request.adapter.ref
        extra += b"lora:" + request.adapter.digest + f"{ref.name}\0{ref.path}\0".encode()
    if index == 0 and request.cache_salt:
        extra += b"cache_salt:" + request.cache_salt.encode()
    return extra
