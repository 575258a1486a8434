"""The transfers of one stream: when receives begin, and that each has one end."""

import asyncio
import threading

import numpy as np
import pytest
import torch

from tetrad.services.errors import InvalidRequest, NotFound
from tetrad.worker_svc.api.kv_transfers import StreamTransfers
from tetrad.worker_svc.core.kv_transfer import KvLease, KvReceive, KvTransferOrders
from tetrad.worker_svc.kv_cache.block_contents import HostBlockContents
from tetrad.worker_svc.kv_cache.block_exchange import BlockExchange
from tetrad.worker_svc.worker.compute_thread import ComputeThread

STREAM, BLOCK_BYTES, NUM_BLOCKS = 3, 4, 8


class Peers:
    """Other workers that send these pieces, then raise this error."""

    def __init__(self, *pieces: bytes, error: Exception | None = None, waits: bool = False) -> None:
        self._pieces, self._error, self._waits = pieces, error, waits
        self.reads: list[KvReceive] = []

    async def read(self, order):
        self.reads.append(order)
        for piece in self._pieces:
            yield piece
        if self._waits:
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        pass


class Bench:
    """A stream's transfers over eight blocks of four bytes."""

    def __init__(self, peers: Peers) -> None:
        self.layer = torch.zeros(NUM_BLOCKS, BLOCK_BYTES, dtype=torch.uint8)
        self.exchange = BlockExchange()
        self.exchange.open(STREAM, HostBlockContents([self.layer]))
        self._thread = ComputeThread("transfer")
        self.transfers = StreamTransfers(self.exchange, STREAM, NUM_BLOCKS, self._thread, peers)

    async def __aenter__(self) -> "Bench":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transfers.close()
        self._thread.close()

    def receive(self, *blocks: int, timeout_s: float | None = 30.0) -> None:
        order = KvReceive(7, "unix:/peer", 99, 0, np.array(blocks, np.int64), b"hash", timeout_s)
        self.transfers.note_plan(0, KvTransferOrders(receives=[order]))

    async def end(self):
        async with asyncio.timeout(20):
            return await self.transfers.events.get()


async def test_a_receive_begins_when_its_step_has_returned():
    peers = Peers(bytes(range(8)))
    async with Bench(peers) as bench:
        bench.receive(5, 2)
        await asyncio.sleep(0)
        assert not peers.reads
        bench.transfers.note_returned(0)
        ended = await bench.end()
        assert (list(ended.received), list(ended.failed), ended.bytes_moved) == ([7], [], 8)
        assert bench.layer[[5, 2]].flatten().tolist() == list(range(8))


@pytest.mark.parametrize(
    "peers",
    [
        Peers(error=NotFound("There is no lease 99.")),
        Peers(bytes(4), error=RuntimeError("a bug")),
        Peers(bytes(4)),
        Peers(bytes(12)),
        Peers(bytes(7)),
        Peers(),
    ],
    ids=["refused", "broke", "too few blocks", "too many blocks", "a part of a block", "nothing"],
)
async def test_a_receive_that_cannot_be_completed_fails_once(peers):
    async with Bench(peers) as bench:
        bench.receive(5, 2)
        bench.transfers.note_returned(0)
        ended = await bench.end()
        assert (list(ended.received), list(ended.failed), ended.bytes_moved) == ([7], [7], 0)
        assert bench.transfers.events.empty()


async def test_a_peer_that_stops_sending_costs_the_time_limit():
    async with Bench(Peers(bytes(4), waits=True)) as bench:
        bench.receive(5, 2, timeout_s=0.05)
        bench.transfers.note_returned(0)
        assert list((await bench.end()).failed) == [7]


async def test_a_receive_that_is_given_up_ends_at_once():
    async with Bench(Peers(bytes(4), waits=True)) as bench:
        bench.receive(5, 2)
        bench.transfers.note_returned(0)
        await asyncio.sleep(0.01)
        bench.transfers.note_plan(1, KvTransferOrders(cancelled=[7, 8]))
        ended = await bench.end()
        assert (list(ended.received), list(ended.failed)) == ([7], [7])


@pytest.mark.parametrize("has_returned", [False, True])
async def test_a_receive_that_is_given_up_before_it_begins_fails_when_its_step_has_returned(has_returned):
    peers = Peers(bytes(8))
    async with Bench(peers) as bench:
        bench.receive(5, 2)
        if has_returned:
            bench.transfers.note_returned(0)
        bench.transfers.note_plan(1, KvTransferOrders(cancelled=[7]))
        if not has_returned:
            bench.transfers.note_returned(0)
        assert list((await bench.end()).received) == [7]
        assert bench.transfers.events.empty()


async def test_a_receive_that_has_ended_cannot_be_given_up():
    async with Bench(Peers(bytes(8))) as bench:
        bench.receive(5, 2)
        bench.transfers.note_returned(0)
        await bench.end()
        bench.transfers.note_plan(1, KvTransferOrders(cancelled=[7]))
        bench.receive(5, 2)
        bench.transfers.note_returned(0)
        assert not (await bench.end()).failed


async def test_a_receive_that_takes_too_long_fails_when_its_last_copy_has_ended(monkeypatch):
    """Afterwards its blocks belong to other requests."""
    begun, end = threading.Event(), threading.Event()
    async with Bench(Peers(bytes(4), waits=True)) as bench:
        monkeypatch.setattr(bench.exchange, "write", lambda *_: (begun.set(), end.wait(20)))
        bench.receive(5, 2, timeout_s=0.05)
        bench.transfers.note_returned(0)
        assert await asyncio.to_thread(begun.wait, 20)
        await asyncio.sleep(0.1)
        assert bench.transfers.events.empty()
        end.set()
        assert list((await bench.end()).failed) == [7]


async def test_a_lease_whose_time_is_over_is_reported():
    async with Bench(Peers()) as bench:
        lease = KvLease(9, 100, np.array([1, 2]), [b"a" * 32, b"b" * 32], ttl_s=0.0)
        bench.transfers.note_plan(0, KvTransferOrders(leases=[lease]))
        assert list((await bench.end()).expired) == [9]


async def test_a_block_that_does_not_exist_is_refused():
    async with Bench(Peers()) as bench:
        with pytest.raises(InvalidRequest, match="Block 8 of a transfer does not exist; the KV cache has 8 blocks"):
            bench.receive(5, 8)
