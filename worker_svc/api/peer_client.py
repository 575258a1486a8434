"""Peer client: reads KV blocks of leases from the workers of other engine cores, over KvTransferService."""

from collections.abc import AsyncIterator, Callable

import grpc

from tetrad.services.errors import FailedPrecondition
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import worker_pb2, worker_pb2_grpc
from tetrad.worker_svc.core.kv_transfer import KvReceive


class PeerClient:
    """Connections to other workers, one for each address.

    Args:
        connect: returns a channel to the worker at an address.
        fingerprint: see checkpoint/fingerprint.py; workers of another one refuse.
    """

    def __init__(self, connect: Callable[[str], grpc.aio.Channel], fingerprint: bytes) -> None:
        self._connect, self._fingerprint = connect, fingerprint
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def read(self, order: KvReceive) -> AsyncIterator[bytes]:
        """Yield the content of the blocks, some whole blocks at a time.

        All of it is valid only if no error follows. Raises the other worker's error; Unavailable if it cannot be reached.
        """
        request = worker_pb2.ReadBlocksRequest(
            lease_id=order.lease_id,
            compatibility_hash=self._fingerprint,
            first_block=order.first,
            num_blocks=len(order.blocks),
            last_block_hash=order.last_hash,
        )
        try:
            async for response in worker_pb2_grpc.KvTransferServiceStub(self._channel(order.address)).ReadBlocks(request):
                if response is None:  # gRPC's value for bytes that are not a message
                    raise FailedPrecondition("The other worker sent bytes that are no ReadBlocksResponse.")
                yield response.content
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._connect(address)
        return self._channels[address]
