"""Wire: the parameters and the KV transfers of requests as messages, for all rooms that read or write them.

The engine core passes a request's parameters on to the worker as they are. KV transfers are those of requests and their
outputs, and those of plans and workers' events.
"""

from dataclasses import dataclass

from tetrad.engine_core_svc.core.kv_transfer import (
    NO_TRANSFER,
    HandOver,
    KvLease,
    KvReceive,
    KvTransfer,
    RemoteBlocks,
    TransferOrders,
)
from tetrad.engine_core_svc.core.payload import EncodedParams
from tetrad.engine_core_svc.core.plan import TransferEvents
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import engine_core_pb2, types_pb2, worker_pb2

_FIELD = "kv_transfer"


@dataclass(frozen=True, slots=True, eq=False)
class SamplingMessage(EncodedParams):
    """Sampling parameters of a generating request. The message must not change: several plans and requests hold it."""

    message: types_pb2.SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class PoolingMessage(EncodedParams):
    """Parameters of a pooling request."""

    message: types_pb2.PoolingParams


def sampling_of(params: EncodedParams) -> types_pb2.SamplingParams:
    """Return the message of sampling parameters. Raises TypeError for other parameters, which is a bug of the caller."""
    if not isinstance(params, SamplingMessage):
        raise TypeError(f"{type(params).__name__} holds no sampling parameters")
    return params.message


def decode_transfer(message: engine_core_pb2.EngineCoreRequest) -> KvTransfer:
    """Return what a request asks of KV transfers. Raises InvalidRequest or Unsupported for a source that cannot be read."""
    if not message.HasField("kv_transfer"):
        return NO_TRANSFER
    params = message.kv_transfer
    return KvTransfer(params.do_remote_decode, _decode_source(params) if params.do_remote_prefill else None)


def _decode_source(params: types_pb2.KvTransferParams) -> RemoteBlocks:
    if params.transfer_mode not in ("", "pull"):
        raise Unsupported(f"kv_transfer.transfer_mode {params.transfer_mode[:40]!r} must be 'pull'.", field=_FIELD)
    if max(params.tp_size, params.pp_size) > 1:
        text = f"kv_transfer has blocks of {params.tp_size} x {params.pp_size} ranks; only those of one rank can be read."
        raise Unsupported(text, field=_FIELD)
    if not params.lease_id or not params.remote_host or len(params.remote_block_ids) > 1:
        text = "kv_transfer with do_remote_prefill needs lease_id, remote_host and the blocks of one KV group."
        raise InvalidRequest(text, field=_FIELD)
    return RemoteBlocks(
        params.remote_engine_id,
        params.remote_request_id,
        params.remote_host,
        params.remote_port,
        params.lease_id,
        params.remote_num_tokens,
    )


def encode_hand_over(hand_over: HandOver) -> types_pb2.KvTransferParams:
    """Return the parameters with which another engine core reads the blocks."""
    params = encode_source(hand_over.blocks)
    params.do_remote_prefill = True
    params.remote_block_ids.append(pack_u32(hand_over.block_ids))
    return params


def encode_source(blocks: RemoteBlocks) -> types_pb2.KvTransferParams:
    """Return the place of blocks as a message."""
    return types_pb2.KvTransferParams(
        remote_engine_id=blocks.engine_id,
        remote_request_id=blocks.request_id,
        remote_host=blocks.host,
        remote_port=blocks.port,
        lease_id=blocks.lease_id,
        remote_num_tokens=blocks.num_tokens,
        tp_size=1,
        pp_size=1,
        transfer_mode="pull",
    )


def encode_orders(orders: TransferOrders, *, with_cancelled: bool) -> worker_pb2.KvTransferPlan:
    """Return the transfers of a plan as a message; `with_cancelled`: whether the worker can give transfers up."""
    return worker_pb2.KvTransferPlan(
        receives=[_encode_receive(each) for each in orders.receives],
        leases=[_encode_lease(each) for each in orders.leases],
        cancelled_transfer_ids=pack_u32(orders.cancelled) if with_cancelled else b"",
    )


def _encode_receive(receive: KvReceive) -> worker_pb2.KvReceive:
    return worker_pb2.KvReceive(
        transfer_id=receive.key,
        local_block_ids=[pack_u32(table) for table in receive.tables],
        source=encode_source(receive.source),
        timeout_s=receive.timeout_s,
        first_block=receive.first,
        last_block_hash=receive.last_hash,
    )


def _encode_lease(lease: KvLease) -> worker_pb2.KvLease:
    return worker_pb2.KvLease(
        transfer_id=lease.key,
        lease_id=lease.lease_id,
        request_id=lease.request_id,
        block_ids=[pack_u32(lease.blocks)],
        ttl_s=lease.ttl_s,
        block_hashes=b"".join(lease.hashes),
    )


def decode_transfer_events(message: worker_pb2.KvTransferEvents) -> TransferEvents:
    """Return the ends of transfers. Raises InvalidRequest for malformed columns."""
    return TransferEvents(
        received=unpack_u32(message.received),
        failed=unpack_u32(message.failed),
        sent=[*unpack_u32(message.sent), *unpack_u32(message.expired)],
        num_expired=len(message.expired) // 4,
        bytes_moved=message.bytes_moved,
        seconds=message.seconds,
    )
