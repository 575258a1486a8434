"""Wire of KV groups: decodes the worker's GetKvCacheSpec, and refuses groups that this engine core cannot manage.

Called by the worker link. All groups share one pool of blocks, so their blocks are alike.
"""

from collections.abc import Sequence

from tetrad.engine_core_svc.core.kv_groups import KvGroup
from tetrad.services.errors import FailedPrecondition
from tetrad.v1 import types_pb2, worker_pb2

_WINDOW = types_pb2.KV_CACHE_KIND_SLIDING_WINDOW
_SUPPORTED = {
    types_pb2.KV_CACHE_KIND_UNSPECIFIED,
    types_pb2.KV_CACHE_KIND_FULL_ATTENTION,
    types_pb2.KV_CACHE_KIND_LATENT,
    types_pb2.KV_CACHE_KIND_STATE,
    _WINDOW,
}


def tokens_per_block(groups: Sequence[worker_pb2.KvCacheGroup], block_size: int) -> int:
    """Return the worker's tokens per block when `block_size` was requested: more if a block must hold a state."""
    sizes = [group.block_size for group in groups if group.kind == types_pb2.KV_CACHE_KIND_STATE and group.block_size]
    return max(sizes, default=block_size)


def decode_groups(groups: Sequence[worker_pb2.KvCacheGroup], block_size: int) -> tuple[KvGroup, ...]:
    """Return a worker's KV groups. Raises FailedPrecondition if a group's blocks do not have `block_size` tokens."""
    for number, group in enumerate(groups):
        if group.kind not in _SUPPORTED:
            name = types_pb2.KvCacheKind.Name(group.kind)
            raise FailedPrecondition(
                f"KV group {number} of the worker is of kind {name}, which this engine core does not support."
            )
        if group.block_size not in (0, block_size):
            raise FailedPrecondition(
                f"KV group {number} of the worker has {group.block_size} tokens per block; all groups must have {block_size}."
            )
    return tuple(_decode_group(group) for group in groups)


def block_size_bytes(groups: Sequence[worker_pb2.KvCacheGroup]) -> int:
    """Return the bytes of a block, equal for all groups; 0 without a group. Raises FailedPrecondition if they differ."""
    if not groups:
        return 0
    sizes = {group.block_size_bytes for group in groups}
    if len(sizes) != 1:
        raise FailedPrecondition(
            f"The worker has {len(groups)} KV groups with blocks of {sorted(sizes)} bytes, not of one size."
        )
    return sizes.pop()


def least_room(block_sizes: Sequence[int], available: Sequence[int]) -> tuple[int, int]:
    """Return the bytes of the largest block of any rank, and how many bytes of such blocks every rank can hold.

    Args:
        block_sizes: bytes of a block, by rank: stages have different numbers of layers. 0: unknown.
        available: available bytes, by rank.
    """
    largest = max(block_sizes)
    if not min(block_sizes):
        return largest, min(available)
    return largest, largest * min(each // size for each, size in zip(available, block_sizes, strict=True))


def _decode_group(group: worker_pb2.KvCacheGroup) -> KvGroup:
    if group.kind == types_pb2.KV_CACHE_KIND_STATE:
        return KvGroup(is_state=True)
    keeps_all = group.kind not in (_WINDOW, types_pb2.KV_CACHE_KIND_UNSPECIFIED) or not group.sliding_window
    return KvGroup(None if keeps_all else group.sliding_window)
