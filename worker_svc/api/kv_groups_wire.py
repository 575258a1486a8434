"""Wire of KV groups: converts messages to the worker's values and back."""

from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.core.device import KvGroup


def encode_group(group: KvGroup) -> worker_pb2.KvCacheGroup:
    """Return the message that describes a group."""
    return worker_pb2.KvCacheGroup(
        layers=group.layers,
        block_size_bytes=group.block_size_bytes,
        num_kv_heads=group.num_kv_heads,
        head_size=group.head_size,
        dtype=group.dtype,
        sliding_window=group.sliding_window,
        kind=_kind_of(group),
        block_size=group.block_size,
    )


def decode_group(message: worker_pb2.KvCacheGroup) -> KvGroup:
    """Return the group that a message describes; the inverse of `encode_group`."""
    return KvGroup(
        layers=tuple(message.layers),
        block_size_bytes=message.block_size_bytes,
        num_kv_heads=message.num_kv_heads,
        head_size=message.head_size,
        dtype=message.dtype,
        sliding_window=message.sliding_window if message.HasField("sliding_window") else None,
        is_state=message.kind == types_pb2.KV_CACHE_KIND_STATE,
        block_size=message.block_size,
    )


def _kind_of(group: KvGroup) -> types_pb2.KvCacheKind:
    if group.is_state:
        return types_pb2.KV_CACHE_KIND_STATE
    has_window = group.sliding_window is not None
    return types_pb2.KV_CACHE_KIND_SLIDING_WINDOW if has_window else types_pb2.KV_CACHE_KIND_FULL_ATTENTION
