"""KV events: encodes the changes of prefix caches as KvEventBatches of OpenEngine. One KvBatches per subscription and rank."""

from tetrad.openengine_api import kv_events_pb2
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import engine_core_pb2

_ENCODING = "bytes"
_MEDIA: dict[str, kv_events_pb2.StorageMedium] = {
    "GPU": kv_events_pb2.STORAGE_MEDIUM_GPU,
    "CPU": kv_events_pb2.STORAGE_MEDIUM_CPU_PINNED,
    "STORAGE": kv_events_pb2.STORAGE_MEDIUM_DISK,
}


class KvBatches:
    """Makes the batches of one engine core for one subscription.

    Args:
        rank: the rank of the engine core.
        skips_snapshot: whether to omit the snapshot at the beginning. Later snapshots replace batches and are always sent.
    """

    def __init__(self, rank: int, *, skips_snapshot: bool) -> None:
        self._rank = rank
        self._skips_snapshot = skips_snapshot
        self._number_of_snapshot: int | None = None

    def of(self, notice: engine_core_pb2.SubscribeKvEventsResponse) -> kv_events_pb2.KvEventBatch | None:
        """Return the batch of a message; None: the message is omitted."""
        if self._is_skipped(notice):
            return None
        return kv_events_pb2.KvEventBatch(
            sequence_number=notice.sequence_number,
            timestamp_unix_nanos=round(notice.timestamp_unix_s * 1e9),
            data_parallel_rank=self._rank,
            events=[_event(event) for event in notice.events],
        )

    def _is_skipped(self, notice: engine_core_pb2.SubscribeKvEventsResponse) -> bool:
        if not self._skips_snapshot:
            return False
        if self._number_of_snapshot is None:
            self._number_of_snapshot = notice.sequence_number
        # All messages of one snapshot have the same number.
        self._skips_snapshot = notice.snapshot and notice.sequence_number == self._number_of_snapshot
        return self._skips_snapshot


def _event(event: engine_core_pb2.KvCacheEvent) -> kv_events_pb2.KvEvent:
    match event.WhichOneof("event"):
        case "stored":
            return kv_events_pb2.KvEvent(block_stored=_stored(event.stored))
        case "removed":
            removed = event.removed
            hashes = [_hash(name) for name in removed.block_hashes]
            message = kv_events_pb2.BlockRemoved(
                block_hashes=hashes, medium=_medium(removed.medium), group_idx=removed.group_index
            )
            return kv_events_pb2.KvEvent(block_removed=message)
        case _:
            return kv_events_pb2.KvEvent(all_blocks_cleared=kv_events_pb2.AllBlocksCleared())


def _stored(run: engine_core_pb2.KvBlocksStored) -> kv_events_pb2.BlockStored:
    return kv_events_pb2.BlockStored(
        block_hashes=[_hash(name) for name in run.block_hashes],
        parent_block_hash=_hash(run.parent_block_hash) if run.HasField("parent_block_hash") else None,
        token_ids=unpack_u32(run.token_ids),
        block_size=run.block_size,
        lora_name=run.lora_name,
        medium=_medium(run.medium),
        extra_keys=_extra_keys(run),
        group_idx=run.group_index,
        kv_cache_spec_sliding_window=run.sliding_window,
    )


def _extra_keys(run: engine_core_pb2.KvBlocksStored) -> list[kv_events_pb2.OpaqueKeyTuple]:
    # The salt is a key of the first block of a sequence; the others have it through their parents.
    if not run.cache_salt or run.HasField("parent_block_hash"):
        return []
    salts = [run.cache_salt] + [""] * (len(run.block_hashes) - 1)
    return [kv_events_pb2.OpaqueKeyTuple(values=[salt] if salt else []) for salt in salts]


def _hash(name: bytes) -> kv_events_pb2.KvBlockHash:
    return kv_events_pb2.KvBlockHash(value=name, encoding=_ENCODING)


def _medium(name: str) -> kv_events_pb2.StorageMedium:
    return _MEDIA.get(name, kv_events_pb2.STORAGE_MEDIUM_UNSPECIFIED)
