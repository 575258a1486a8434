"""KvTransferService: lets workers of other engine cores read the blocks of leases.

Runs on the event loop; the transfer thread copies the blocks. A read that ends without an error has delivered valid content:
the lease was in force until the end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from tetrad.services.errors import FailedPrecondition, NotFound
from tetrad.v1 import worker_pb2, worker_pb2_grpc
from tetrad.worker_svc.kv_cache.block_exchange import BlockExchange
from tetrad.worker_svc.worker.compute_thread import ComputeThread

_MESSAGE_BYTES = 1 << 20
"""Maximum size of the content of one message; one block, if that is larger."""
_ARRIVAL_TIMEOUT_S = 1.0
_ARRIVAL_INTERVAL_S = 0.01
"""A reader may be faster than the plan with its lease: the worker waits for it, so many seconds at most."""


class KvTransferServicer(worker_pb2_grpc.KvTransferServiceServicer):
    """Serves the blocks of one worker.

    Args:
        exchange: the blocks and leases.
        fingerprint: returns the fingerprint of the present model and layout.
        thread: the thread that copies blocks.
    """

    def __init__(self, exchange: BlockExchange, fingerprint: Callable[[], bytes], thread: ComputeThread) -> None:
        self._exchange, self._fingerprint, self._thread = exchange, fingerprint, thread

    async def ReadBlocks(
        self,
        request: worker_pb2.ReadBlocksRequest,
        context: Any,
    ) -> AsyncIterator[worker_pb2.ReadBlocksResponse]:
        """See worker.proto."""
        lease_id, first = request.lease_id, request.first_block
        if request.compatibility_hash != self._fingerprint():
            raise FailedPrecondition(
                "The reader's worker has another model, other load options or another KV layout; KV blocks can only be moved "
                "between engine cores that serve the same model in the same way."
            )
        await self._wait_for(lease_id)
        self._exchange.enter(lease_id, first, request.num_blocks, request.last_block_hash)
        is_read = False
        try:
            per_message = max(1, _MESSAGE_BYTES // max(1, self._exchange.block_bytes))
            for start in range(0, request.num_blocks, per_message):
                count = min(per_message, request.num_blocks - start)
                content = await self._thread.submit(self._exchange.read, lease_id, first + start, count)
                yield worker_pb2.ReadBlocksResponse(content=content)
            is_read = True
        finally:
            if not is_read:
                with suppress(NotFound):
                    self._exchange.leave(lease_id, is_read=False)
        self._exchange.leave(lease_id, is_read=True)

    async def _wait_for(self, lease_id: int) -> None:
        end = time.monotonic() + _ARRIVAL_TIMEOUT_S
        while not self._exchange.has(lease_id) and time.monotonic() < end:  # noqa: ASYNC110 - the exchange knows no event loop
            await asyncio.sleep(_ARRIVAL_INTERVAL_S)  # rare: the plan and the reader race
