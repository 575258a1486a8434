"""KV transfer wire: converts KvTransfer to its message and back. It only converts."""

from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import types_pb2


def encode_kv_transfer(transfer: KvTransfer) -> types_pb2.KvTransferParams:
    """Return a transfer as a message."""
    return types_pb2.KvTransferParams(
        do_remote_decode=transfer.do_remote_decode,
        do_remote_prefill=transfer.do_remote_prefill,
        remote_engine_id=transfer.remote_engine_id,
        remote_request_id=transfer.remote_request_id,
        remote_host=transfer.remote_host,
        remote_port=transfer.remote_port,
        remote_block_ids=transfer.remote_block_ids,
        tp_size=transfer.tp_size,
        pp_size=transfer.pp_size,
        remote_num_tokens=transfer.remote_num_tokens,
        lease_id=transfer.lease_id,
        transfer_mode=transfer.transfer_mode,
        extra_json=transfer.extra_json,
    )


def decode_kv_transfer(message: types_pb2.KvTransferParams) -> KvTransfer:
    """Return the transfer of a message; InvalidRequest for block ids that are no u32 columns."""
    for column in message.remote_block_ids:
        unpack_u32(column)
    return KvTransfer(
        do_remote_decode=message.do_remote_decode,
        do_remote_prefill=message.do_remote_prefill,
        remote_engine_id=message.remote_engine_id,
        remote_request_id=message.remote_request_id,
        remote_host=message.remote_host,
        remote_port=message.remote_port,
        remote_block_ids=tuple(message.remote_block_ids),
        tp_size=message.tp_size,
        pp_size=message.pp_size,
        remote_num_tokens=message.remote_num_tokens,
        lease_id=message.lease_id,
        transfer_mode=message.transfer_mode,
        extra_json=message.extra_json,
    )
