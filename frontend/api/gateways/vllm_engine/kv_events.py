"""KV events: encodes the changes of all prefix caches as KvEventBatches, for gateways that route by prefix.

Each subscription starts with an AllBlocksCleared and a snapshot, numbered from the gateway's start number; no state is kept
between subscriptions, and the numbers have no gaps. Each engine core is a rank with its own numbers.
"""

from collections import Counter

from smg_grpc_proto.generated import common_pb2

from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import engine_core_pb2


class KvEventBatches:
    """Makes the batches of one subscription.

    Args:
        start: number of the next batch that the gateway expects; 0: any.
    """

    def __init__(self, start: int) -> None:
        self._first = start or 1
        self._num_sent: Counter[int] = Counter()

    def of(self, rank: int, notice: engine_core_pb2.SubscribeKvEventsResponse) -> common_pb2.KvEventBatch:
        """Return the batch of one engine core's events."""
        number = self._first + self._num_sent[rank]
        self._num_sent[rank] += 1
        return common_pb2.KvEventBatch(
            sequence_number=number,
            timestamp=notice.timestamp_unix_s,
            events=[_event(number, event) for event in notice.events],
            dp_rank=rank,
        )


def _event(number: int, event: engine_core_pb2.KvCacheEvent) -> common_pb2.KvCacheEvent:
    match event.WhichOneof("event"):
        case "stored":
            return common_pb2.KvCacheEvent(event_id=number, stored=_stored(event.stored))
        case "removed":
            hashes = [_short(name) for name in event.removed.block_hashes]
            return common_pb2.KvCacheEvent(event_id=number, removed=common_pb2.KvBlocksRemoved(block_hashes=hashes))
        case _:
            return common_pb2.KvCacheEvent(event_id=number, cleared=common_pb2.KvCacheCleared())


def _stored(run: engine_core_pb2.KvBlocksStored) -> common_pb2.KvBlocksStored:
    ids, size = unpack_u32(run.token_ids), run.block_size
    blocks = [
        common_pb2.KvBlock(block_hash=_short(name), token_ids=ids[place * size : (place + 1) * size], block_size=size)
        for place, name in enumerate(run.block_hashes)
    ]
    return common_pb2.KvBlocksStored(
        blocks=blocks,
        parent_block_hash=_short(run.parent_block_hash) if run.HasField("parent_block_hash") else None,
        tier=common_pb2.KV_CACHE_TIER_DEVICE,
        medium=run.medium,
        lora_name=run.lora_name or None,
        cache_salt=run.cache_salt or None,
    )


def _short(name: bytes) -> int:
    """Return a block's name in this API: the first 64 bits of Tetrad's hash."""
    return int.from_bytes(name[:8], "little", signed=True)
