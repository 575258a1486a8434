"""Wire of KV transfers: decodes the transfers that begin with a plan, and encodes the ends of transfers."""

from collections.abc import Sequence

import numpy as np

from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import worker_pb2
from tetrad.worker_svc.core.kv_transfer import HASH_BYTES, KvLease, KvReceive, KvTransferEvents, KvTransferOrders
from tetrad.worker_svc.core.plan import Ints


def decode_orders(message: worker_pb2.KvTransferPlan) -> KvTransferOrders:
    """Return the transfers of a plan. Raises InvalidRequest if columns contradict each other."""
    return KvTransferOrders(
        receives=[_decode_receive(each) for each in message.receives],
        leases=[_decode_lease(each) for each in message.leases],
        cancelled=unpack_u32(message.cancelled_transfer_ids),
    )


def _decode_receive(message: worker_pb2.KvReceive) -> KvReceive:
    source = message.source
    if source.transfer_mode not in ("", "pull"):
        raise InvalidRequest(f"transfer_mode {source.transfer_mode[:40]!r} of a receive must be 'pull'.")
    return KvReceive(
        transfer_id=message.transfer_id,
        address=address_of(source.remote_host, source.remote_port),
        lease_id=source.lease_id,
        first=message.first_block,
        blocks=_only_group(message.local_block_ids),
        last_hash=message.last_block_hash,
        timeout_s=message.timeout_s or None,
    )


def address_of(host: str, port: int) -> str:
    """Return the address to connect to; a Unix socket (unix:/path) has port 0."""
    return f"{host}:{port}" if port else host


def _decode_lease(message: worker_pb2.KvLease) -> KvLease:
    blocks, column = _only_group(message.block_ids), message.block_hashes
    if len(column) != len(blocks) * HASH_BYTES:
        raise InvalidRequest(f"A lease of {len(blocks)} blocks has {len(column)} bytes of block_hashes, not 32 a block.")
    hashes = [column[start : start + HASH_BYTES] for start in range(0, len(column), HASH_BYTES)]
    return KvLease(message.transfer_id, message.lease_id, blocks, hashes, message.ttl_s)


def _only_group(columns: Sequence[bytes]) -> Ints:
    if len(columns) != 1:
        raise InvalidRequest(f"A transfer has the blocks of one KV group; this one has {len(columns)}.")
    return np.array(unpack_u32(columns[0]), np.int64)


def encode_events(events: KvTransferEvents) -> worker_pb2.KvTransferEvents:
    """Return the message of the ends of transfers."""
    return worker_pb2.KvTransferEvents(
        sent=pack_u32(events.sent),
        received=pack_u32(events.received),
        failed=pack_u32(events.failed),
        expired=pack_u32(events.expired),
        bytes_moved=events.bytes_moved,
        seconds=events.seconds,
    )
