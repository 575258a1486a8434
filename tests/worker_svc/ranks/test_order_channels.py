"""Order channels: orders arrive whole and in order, in shared memory and over gloo; the loss of a rank ends the waits."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from tests.worker_svc.ranks.rank_process import rank_process
from tetrad.worker_svc.core.ranks import GroupPlace, RankLost, Shard
from tetrad.worker_svc.layers.order_channel import GlooOrders, OrderChannel
from tetrad.worker_svc.layers.rendezvous import Rendezvous
from tetrad.worker_svc.native import shared_memory
from tetrad.worker_svc.native.library import best_target, load_library
from tetrad.worker_svc.native.shared_memory import SharedMemory
from tetrad.worker_svc.native.shared_orders import OrdersOfMachine, SharedOrders

RING_BYTES = 2 * 1024 * 1024
"""Bytes that a member may be behind, as in shared_orders.h."""
SHORT, LONG = np.arange(5), np.arange(3000) - 7
ORDERS = [
    (SHORT, None),
    (LONG, None),
    (SHORT, torch.randn(3, 576)),
    (np.empty(0, np.int64), torch.randn(1, 1)),
    (np.arange(RING_BYTES // 4), torch.randn(700, 1024)),
    *[(np.array([number]), None) for number in range(200)],
]


@contextmanager
def opened(directory: Path, size: int, monkeypatch: pytest.MonkeyPatch, kind: type) -> Iterator[list[OrderChannel]]:
    """Let the ranks of a group meet, each on a thread; give the channel of each."""
    if kind is GlooOrders:
        monkeypatch.setattr(shared_memory, "_attached", lambda _: None)
    library, addresses = load_library(best_target()), [f"unix:{directory}/{rank}" for rank in range(size)]

    def join(rank: int) -> OrderChannel:
        met = Rendezvous(GroupPlace(Shard(rank, size), 1, addresses, 10.0))
        return OrdersOfMachine(library)(met, met.connect("orders", rank, size, 10.0), rank, size)

    with ThreadPoolExecutor(size) as threads:
        channels = list(threads.map(join, range(size)))
    assert all(type(channel) is kind for channel in channels)
    yield channels


def failing(call: Callable[[], object]) -> tuple[Thread, list[RankLost]]:
    """Call something on a thread; the list gets its RankLost."""
    errors: list[RankLost] = []

    def run() -> None:
        try:
            call()
        except RankLost as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


@pytest.mark.parametrize("kind", [SharedOrders, GlooOrders])
def test_members_receive_the_orders_that_are_sent_to_them(socket_directory, monkeypatch, kind):
    """Also orders that are larger than the memory, and floats for some of the members only."""
    with opened(socket_directory, 3, monkeypatch, kind) as (leader, *members), ThreadPoolExecutor(2) as threads:
        found = [threads.submit(lambda each: [each.receive() for _ in ORDERS], member) for member in members]
        for numbers, values in ORDERS:
            leader.send(range(1, 2), numbers, values)
            leader.send(range(2, 3), numbers, None)
        first, second = (each.result(30) for each in found)

    assert [numbers.tolist() for numbers, _ in first] == [numbers.tolist() for numbers, _ in ORDERS]
    assert [numbers.tolist() for numbers, _ in second] == [numbers.tolist() for numbers, _ in ORDERS]
    for (_, values), (_, sent) in zip(first, ORDERS, strict=True):
        assert (values is None) == (sent is None)
        assert values is None or torch.equal(values, sent)
    assert all(values is None for _, values in second)


def test_a_leader_waits_only_for_a_member_that_is_far_behind(socket_directory, monkeypatch):
    with opened(socket_directory, 2, monkeypatch, SharedOrders) as (leader, member):
        half = np.zeros(RING_BYTES // 2 // 8 - 3, np.int64)
        for _ in range(2):
            leader.send(range(1, 2), half, None)
        thread, errors = failing(partial(leader.send, range(1, 2), SHORT, None))
        thread.join(0.1)
        assert thread.is_alive()

        received = [member.receive()[0] for _ in range(3)]
        thread.join(10)

    assert [len(each) for each in received] == [len(half), len(half), len(SHORT)]
    assert errors == []


def test_a_member_receives_what_a_leader_sent_before_it_left(socket_directory, monkeypatch):
    with opened(socket_directory, 2, monkeypatch, SharedOrders) as (leader, member):
        leader.send(range(1, 2), SHORT, None)
        leader.leave()

        assert member.receive()[0].tolist() == SHORT.tolist()
        with pytest.raises(RankLost, match="A rank is lost"):
            member.receive()


@pytest.mark.parametrize("leaves", [0, 1], ids=["the leader", "the member"])
def test_a_rank_that_leaves_ends_a_members_wait(socket_directory, monkeypatch, leaves):
    with opened(socket_directory, 2, monkeypatch, SharedOrders) as channels:
        thread, errors = failing(channels[1].receive)
        time.sleep(0.05)
        channels[leaves].leave()
        thread.join(10)

    assert "A rank is lost" in str(errors[0])


def test_a_member_that_leaves_ends_the_leaders_wait(socket_directory, monkeypatch):
    with opened(socket_directory, 2, monkeypatch, SharedOrders) as (leader, member):
        thread, errors = failing(partial(leader.send, range(1, 2), np.zeros(RING_BYTES, np.int64), None))
        time.sleep(0.05)
        member.leave()
        thread.join(10)

    assert "A rank is lost" in str(errors[0])


def test_a_member_waits_for_a_leader_that_stands_still_until_its_process_ends():
    library = load_library(best_target())
    file = shared_memory.make_file("orders", library.tetrad_orders_size_bytes(2), bytes(16))
    assert library.tetrad_shared_join(file, 1) == 0
    member = SharedOrders(library, SharedMemory(file, 1, 2, timeout_s=0.01))
    with rank_process(file, 0) as leader:
        thread, errors = failing(member.receive)
        thread.join(0.3)
        assert thread.is_alive()

        leader.kill()
        thread.join(10)

    assert "A rank is lost" in str(errors[0])


def test_a_leader_deletes_the_files_by_which_its_earlier_groups_met(socket_directory):
    """A killed rank leaves such a file, since the last rank that closes it deletes it."""
    for epoch in (1, 2):
        (socket_directory / f"worker.sock.group-{epoch}").touch()
    (socket_directory / "worker-2.sock.group-1").touch()

    Rendezvous(GroupPlace(Shard(0, 1), 3, [f"unix:{socket_directory}/worker.sock"], 10.0)).close()

    assert [path.name for path in socket_directory.iterdir()] == ["worker-2.sock.group-1"]
