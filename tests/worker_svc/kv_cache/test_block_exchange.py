"""The block exchange: leases, the time that they last, and the end of a stream."""

import numpy as np
import pytest
import torch

from tetrad.services.errors import FailedPrecondition, NotFound
from tetrad.worker_svc.core.kv_transfer import KvLease
from tetrad.worker_svc.kv_cache.block_contents import HostBlockContents
from tetrad.worker_svc.kv_cache.block_exchange import BlockExchange

HASHES = [bytes([number]) * 32 for number in range(3)]
STREAM = 5


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def exchange(clock):
    """Two layers of eight blocks of four bytes; block n of layer l has the bytes 10 l + n."""
    layers = [torch.arange(8, dtype=torch.uint8)[:, None].repeat(1, 4) + 10 * layer for layer in range(2)]
    exchange = BlockExchange(clock)
    exchange.open(STREAM, HostBlockContents(layers))
    exchange.hold(STREAM, [KvLease(7, 99, np.array([6, 2, 4]), HASHES, ttl_s=30.0)])
    return exchange


def read_all(exchange):
    exchange.enter(99, 0, 3, HASHES[2])
    content = exchange.read(99, 0, 3)
    exchange.leave(99, is_read=True)
    return content


def test_blocks_are_read_in_the_order_of_the_lease_with_all_layers_of_each(exchange):
    assert list(read_all(exchange)[::4]) == [6, 16, 2, 12, 4, 14]


def test_a_lease_that_was_read_is_reported_once(exchange):
    read_all(exchange)
    assert exchange.take_ended(STREAM).sent == [7]
    assert exchange.take_ended(STREAM).sent == []
    with pytest.raises(NotFound, match="There is no lease 99"):
        exchange.enter(99, 0, 3, HASHES[2])


@pytest.mark.parametrize(("first", "num_blocks", "last_hash"), [(0, 3, HASHES[1]), (1, 3, HASHES[2]), (0, 2, b"")])
def test_blocks_of_other_content_are_not_read(exchange, first, num_blocks, last_hash):
    with pytest.raises(FailedPrecondition, match="do not have the content of the reader's prompt"):
        exchange.enter(99, first, num_blocks, last_hash)


def test_the_first_blocks_may_be_left_out(exchange):
    exchange.enter(99, 2, 1, HASHES[2])
    assert list(exchange.read(99, 2, 1)) == [4] * 4 + [14] * 4


def test_a_lease_expires_when_nobody_reads_it(exchange, clock):
    clock.now = 29.9
    assert exchange.take_ended(STREAM).expired == []
    clock.now = 30.0
    assert exchange.take_ended(STREAM).expired == [7]


def test_a_lease_does_not_expire_while_it_is_read_and_lasts_its_time_after_a_read_that_failed(exchange, clock):
    exchange.enter(99, 0, 3, HASHES[2])
    clock.now = 100.0
    assert exchange.take_ended(STREAM).expired == []
    exchange.leave(99, is_read=False)
    assert exchange.take_ended(STREAM).expired == []
    clock.now = 130.0
    assert exchange.take_ended(STREAM).expired == [7]


def test_a_lease_that_is_given_back_counts_as_read(exchange):
    exchange.enter(99, 0, 0, b"")
    exchange.leave(99, is_read=True)
    assert exchange.take_ended(STREAM).sent == [7]


def test_a_second_reader_keeps_a_lease_that_the_first_has_read(exchange):
    exchange.enter(99, 0, 3, HASHES[2])
    read_all(exchange)
    assert exchange.take_ended(STREAM).sent == []
    exchange.leave(99, is_read=False)
    assert exchange.take_ended(STREAM).sent == [7]


def test_after_the_end_of_a_stream_nothing_reads_or_writes_its_blocks(exchange):
    exchange.enter(99, 0, 3, HASHES[2])
    exchange.close()
    with pytest.raises(NotFound):
        exchange.read(99, 0, 3)
    with pytest.raises(NotFound):
        exchange.leave(99, is_read=True)
    with pytest.raises(NotFound):
        exchange.write(STREAM, np.array([1]), bytes(8))


def test_the_next_stream_has_none_of_the_leases_and_transfers_of_the_one_before(exchange):
    layers = [torch.zeros(8, 4, dtype=torch.uint8)] * 2
    exchange.open(STREAM + 1, HostBlockContents(layers))
    exchange.hold(STREAM, [KvLease(8, 100, np.array([1]), HASHES[:1], ttl_s=30.0)])
    assert not exchange.has(99)
    assert not exchange.has(100)
    with pytest.raises(NotFound, match="The Execute stream of this transfer has ended"):
        exchange.write(STREAM, np.array([1]), bytes(8))
    assert not exchange.take_ended(STREAM).expired


def test_content_is_written_to_the_blocks_of_all_layers(exchange):
    exchange.write(STREAM, np.array([3, 6]), bytes(range(16)))
    exchange.hold(STREAM, [KvLease(8, 100, np.array([6, 3]), HASHES[:2], ttl_s=30.0)])
    exchange.enter(100, 0, 2, HASHES[1])
    assert list(exchange.read(100, 0, 2)) == [*range(8, 16), *range(8)]


def test_content_of_another_size_is_refused(exchange):
    with pytest.raises(FailedPrecondition, match="2 blocks have 16 bytes here, but 12 were sent"):
        exchange.write(STREAM, np.array([3, 6]), bytes(12))
