"""KV events' wire: encodes batches of KV events. Called by the admin servicer only."""

from tetrad.engine_core_svc.kv_cache.event_log import BlocksRemoved, BlocksStored, KvEvent, KvEventBatch
from tetrad.v1 import engine_core_pb2 as pb

_MEDIUM = "GPU"  # the contract's name of the memory that steps use, on every device


def encode_kv_events(batch: KvEventBatch, block_size: int) -> pb.SubscribeKvEventsResponse:
    """Return a batch of events as a message."""
    return pb.SubscribeKvEventsResponse(
        sequence_number=batch.sequence_number,
        events=[_encode_event(event, block_size) for event in batch.events],
        snapshot=batch.is_snapshot,
        timestamp_unix_s=batch.timestamp,
    )


def _encode_event(event: KvEvent, block_size: int) -> pb.KvCacheEvent:
    if isinstance(event, BlocksStored):
        stored = pb.KvBlocksStored(
            block_hashes=event.block_hashes,
            parent_block_hash=event.parent,
            token_ids=event.token_ids,
            block_size=block_size,
            medium=_MEDIUM,
            cache_salt=event.cache_salt,
            lora_name=event.lora_name,
            extra_keys=event.extra_keys,
        )
        return pb.KvCacheEvent(stored=stored)
    if isinstance(event, BlocksRemoved):
        return pb.KvCacheEvent(removed=pb.KvBlocksRemoved(block_hashes=event.block_hashes, medium=_MEDIUM))
    return pb.KvCacheEvent(cleared=pb.KvBlocksCleared())
