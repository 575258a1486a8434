"""KV transfers of one Execute stream: fetches blocks from other workers, and reports the ends of receives and leases.

Runs on the event loop; copies run on the transfer thread, beside the steps. A receive begins when the plan that names it has
returned: earlier plans may still write to its blocks. A receive that fails is reported; its request is then computed here.
"""

import asyncio
import time
from collections.abc import Sequence

from tetrad.services.errors import FailedPrecondition, InvalidRequest, TetradError
from tetrad.services.log import get_logger
from tetrad.worker_svc.api.peer_client import PeerClient
from tetrad.worker_svc.core.kv_transfer import KvReceive, KvTransferEvents, KvTransferOrders
from tetrad.worker_svc.kv_cache.block_exchange import BlockExchange
from tetrad.worker_svc.worker.compute_thread import ComputeThread

_EXPIRY_INTERVAL_S = 0.25
"""Seconds between two checks whether the time of a lease is over."""
_MAX_RECEIVES = 4
"""Receives that run at the same time; later ones wait, within their time limits."""

log = get_logger()


class StreamTransfers:
    """The transfers of a stream.

    Args:
        exchange: the blocks of this worker.
        stream_id: the stream.
        num_blocks: number of blocks of the cache.
        thread: the thread that copies blocks.
        peers: reads blocks from other workers.

    Attributes:
        events: the ends of transfers.
    """

    def __init__(
        self,
        exchange: BlockExchange,
        stream_id: int,
        num_blocks: int,
        thread: ComputeThread,
        peers: PeerClient,
    ) -> None:
        self._exchange, self._stream_id, self._num_blocks = exchange, stream_id, num_blocks
        self._thread, self._peers = thread, peers
        self.events: asyncio.Queue[KvTransferEvents] = asyncio.Queue()
        self._room = asyncio.Semaphore(_MAX_RECEIVES)
        self._receives: dict[int, Sequence[KvReceive]] = {}  # by the step that must return before
        self._limits: dict[int, asyncio.Timeout] = {}  # of the receives that run, by transfer
        self._open: set[int] = set()  # receives that have not ended
        self._given_up: set[int] = set()  # of these
        self._num_leases = 0
        self._changed = asyncio.Event()
        self._tasks = {asyncio.create_task(self._report_leases(), name="kv_transfers.leases")}
        exchange.on_read = self._changed.set

    def note_plan(self, step_id: int, orders: KvTransferOrders | None) -> None:
        """Put the leases of a plan that arrives in force; its receives begin when its step returns.

        Raises InvalidRequest for a block that does not exist.
        """
        if orders is None:
            return
        for blocks in (*(each.blocks for each in orders.leases), *(each.blocks for each in orders.receives)):
            if blocks.size and (largest := int(blocks.max())) >= self._num_blocks:
                text = f"Block {largest} of a transfer does not exist; the KV cache has {self._num_blocks} blocks."
                raise InvalidRequest(text, reason="INVALID_PLAN")
        self._exchange.hold(self._stream_id, orders.leases)
        self._num_leases += len(orders.leases)
        self._changed.set()
        if orders.receives:
            self._receives[step_id] = orders.receives
            self._open.update(each.transfer_id for each in orders.receives)
        for transfer_id in orders.cancelled:
            self._give_up(transfer_id)

    def note_returned(self, step_id: int) -> None:
        """Begin the receives of a plan whose step has returned."""
        for order in self._receives.pop(step_id, ()):
            task = asyncio.create_task(self._receive(order), name="kv_transfers.receive")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _give_up(self, transfer_id: int) -> None:
        """End a receive now, or when it begins. Does nothing if it has ended."""
        if transfer_id not in self._open:
            return
        self._given_up.add(transfer_id)
        if transfer_id in self._limits:
            self._limits[transfer_id].reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Stop all transfers and close the connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._peers.close()

    async def _report_leases(self) -> None:
        """Report leases that have been read or whose time is over."""
        while True:
            self._changed.clear()
            events = self._exchange.take_ended(self._stream_id)
            if events.sent or events.expired:
                self._num_leases -= len(events.sent) + len(events.expired)
                self.events.put_nowait(events)
            try:
                async with asyncio.timeout(_EXPIRY_INTERVAL_S if self._num_leases else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _receive(self, order: KvReceive) -> None:
        started = time.monotonic()
        problem: str | None = None
        try:
            async with asyncio.timeout(0 if order.transfer_id in self._given_up else order.timeout_s) as limit:
                self._limits[order.transfer_id] = limit
                async with self._room:
                    await self._fetch(order)
        except TimeoutError:
            problem = f"it took longer than {order.timeout_s or 0:g} s"
        except TetradError as error:
            problem = error.message
        except Exception as error:
            # A receive without an end would hold its request for ever.
            log.exception("kv_transfer.broke", address=order.address)
            problem = f"{type(error).__name__}: {error}"
        is_given_up = order.transfer_id in self._given_up
        self._limits.pop(order.transfer_id, None)
        for ids_of in (self._open, self._given_up):
            ids_of.discard(order.transfer_id)
        seconds, ids = time.monotonic() - started, [order.transfer_id]
        num_bytes = 0 if problem else len(order.blocks) * self._exchange.block_bytes
        if problem:
            # A copy that the time limit has interrupted goes on; the blocks are given to other requests after the report.
            await self._thread.submit(_do_nothing)
        # Without blocks, it is a lease to give back that has ended already.
        if problem and not is_given_up and len(order.blocks):
            log.warning("kv_transfer.failed", address=order.address, num_blocks=len(order.blocks), error=problem)
        self.events.put_nowait(
            KvTransferEvents(received=ids, failed=ids if problem else (), bytes_moved=num_bytes, seconds=seconds)
        )

    async def _fetch(self, order: KvReceive) -> None:
        """Write all blocks. Raises a TetradError if they cannot be read."""
        num_written, block_bytes = 0, max(1, self._exchange.block_bytes)
        async for content in self._peers.read(order):
            blocks = order.blocks[num_written : num_written + len(content) // block_bytes]
            await self._thread.submit(self._exchange.write, self._stream_id, blocks, content)
            num_written += len(blocks)
        if num_written != len(order.blocks):
            raise FailedPrecondition(f"The other worker sent {num_written} blocks of {len(order.blocks)}.")


def _do_nothing() -> None:
    """Do nothing: as a queued call, this ends after all earlier calls have ended."""
