"""Frontends of one port: numbers that they count together, metrics that they read from each other, limits that they share."""

import asyncio
import os
import resource

import pytest

from tetrad.frontend.net import peers as peers_module
from tetrad.frontend.net.peer_slots import NUM_SLOTS, PeerSlots
from tetrad.frontend.net.peers import Peers
from tetrad.frontend.observability.merged_metrics import merged
from tetrad.frontend.request.admission import Admission
from tetrad.library.metrics_text import read_metrics
from tetrad.services.errors import Overloaded, Unavailable


@pytest.fixture
def open_slots(tmp_path):
    """Return a maker of slots, as of one process each: the locks belong to the open file."""
    opened = []

    def make():
        opened.append(PeerSlots(tmp_path / "shared" / "counts"))
        return opened[-1]

    yield make
    for slots in opened:
        slots.close()


def die(slots: PeerSlots) -> None:
    """Let go of the file as the end of a process does: its numbers stay."""
    slots._values.release()
    slots._map.close()
    os.close(slots._fd)
    slots._fd = -1


def test_each_sees_the_sum_of_the_others(open_slots):
    one, two, three = open_slots(), open_slots(), open_slots()
    one.publish(1, 10)
    two.publish(2, 20)

    assert [one.number, two.number, three.number] == [0, 1, 2]
    assert (one.others(), two.others(), three.others()) == ((2, 20), (1, 10), (3, 30))


def test_what_a_killed_one_had_is_dropped_by_who_looks(open_slots):
    one, two = open_slots(), open_slots()
    two.publish(5, 50)
    die(two)
    assert one.others() == (5, 50)

    one.forget_dead()

    assert one.others() == (0, 0)


def test_one_that_lives_is_not_dropped(open_slots):
    one, two = open_slots(), open_slots()
    two.publish(5, 50)

    one.forget_dead()

    assert one.others() == (5, 50)


def test_a_successor_takes_the_slot_of_one_that_has_ended(open_slots):
    one, two = open_slots(), open_slots()
    two.publish(5, 50)
    die(two)

    assert open_slots().number == 1
    assert one.others() == (0, 0)


def test_more_frontends_than_slots_are_refused(open_slots):
    for _ in range(NUM_SLOTS):
        open_slots()

    with pytest.raises(Unavailable, match=f"{NUM_SLOTS} frontends share this port already"):
        open_slots()


def test_a_file_without_room_is_told(open_slots):
    """The limit on a file's size stands for a full disk, on which a write to a mapped hole would kill the process (SIGBUS)."""
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, most))
    try:
        with pytest.raises(Unavailable, match=r"shared/counts, .* cannot be written: File too large"):
            open_slots()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))


def test_limits_hold_for_all_together(open_slots):
    one, two = (Admission(3, 100, frontends=open_slots()) for _ in range(2))
    ticket = one.admit(num_requests=2, num_tokens=20)
    two.admit(num_tokens=40)

    with pytest.raises(Overloaded, match="3 unfinished requests; at most 3"):
        two.admit(num_tokens=1)
    ticket.release()
    with pytest.raises(Overloaded, match="Prompts of 40 tokens wait"):
        one.admit(num_tokens=61)

    one.admit(num_tokens=60)
    assert (one.num_requests_of_others, two.num_requests_of_others) == (1, 1)


def test_requests_of_a_killed_frontend_take_no_places(open_slots):
    slots = open_slots()
    Admission(2, 0, frontends=slots).admit(num_requests=2, num_tokens=1)
    survivor = Admission(2, 0, frontends=open_slots())
    with pytest.raises(Overloaded):
        survivor.admit(num_tokens=1)

    die(slots)

    survivor.admit(num_tokens=1)


def test_of_two_that_take_the_last_place_at_once_none_exceeds_the_limit():
    """The other one's request becomes visible between the check and the count."""

    class Racing:
        def __init__(self):
            self.published = []

        def publish(self, num_requests, num_tokens):
            self.published.append((num_requests, num_tokens))

        def others(self):
            return (1, 5) if self.published else (0, 0)

        def forget_dead(self):
            pass

    others = Racing()
    admission = Admission(1, 0, frontends=others)

    with pytest.raises(Overloaded):
        admission.admit(num_tokens=5)

    assert (admission.num_requests, admission.num_queued_tokens) == (0, 0)
    assert others.published == [(1, 5), (0, 0)]


async def test_frontends_read_each_others_metrics(tmp_path):
    one, two, three = (Peers(tmp_path) for _ in range(3))
    await one.serve(lambda: b"one")
    await two.serve(lambda: b"two")

    assert await one.pages() == {1: b"two"}
    assert await three.pages() == {0: b"one", 1: b"two"}

    await two.close()
    assert await three.pages() == {0: b"one"}
    for peers in (one, three):
        await peers.close()


async def test_the_socket_of_a_killed_frontend_is_no_page(tmp_path):
    one = Peers(tmp_path)
    (tmp_path / "7.metrics").write_bytes(b"")

    assert await one.pages() == {}
    await one.close()


def test_merged_pages_have_each_family_once_and_a_label_for_each_frontend():
    page = (
        b"# HELP a_total Text, with {braces}.\n# TYPE a_total counter\na_total %d.0\n"
        b'# HELP b Text.\n# TYPE b gauge\nb{model="m {x}"} 2.0\n'
    )
    further = b'# HELP c Text.\n# TYPE c gauge\nc{le="1"} 3.0\n'

    assert merged({1: page % 5 + further, 0: page % 4}).decode().splitlines() == [
        "# HELP a_total Text, with {braces}.",
        "# TYPE a_total counter",
        'a_total{frontend="0"} 4.0',
        'a_total{frontend="1"} 5.0',
        "# HELP b Text.",
        "# TYPE b gauge",
        'b{frontend="0",model="m {x}"} 2.0',
        'b{frontend="1",model="m {x}"} 2.0',
        "# HELP c Text.",
        "# TYPE c gauge",
        'c{frontend="1",le="1"} 3.0',
    ]


@pytest.mark.parametrize("separator", ["\r", "\x85", "\u2028"])
def test_a_name_with_a_separator_of_lines_stays_in_its_line(separator):
    """Prometheus ends a line at a line feed alone, and labels carry names of adapters and models."""
    name = f"an{separator}adapter"
    page = f'# HELP a Text.\n# TYPE a gauge\na{{adapter="{name}"}} 2.0\n'

    assert merged({0: page.encode()}).decode() == page.replace("{", '{frontend="0",')


def test_readers_of_a_merged_page_add_counters_and_take_engine_loads_once():
    page = (
        b"# HELP tetrad:a_total A.\n# TYPE tetrad:a_total counter\n"
        b'tetrad:a_total{kind="x"} %d.0\ntetrad:a_total{kind="y"} 1.0\n'
        b"# HELP tetrad:num_requests_running R.\n# TYPE tetrad:num_requests_running gauge\ntetrad:num_requests_running %d.0\n"
    )

    found = read_metrics(merged({0: page % (5, 3), 1: page % (2, 4)}).decode())

    assert found == {"a": 9.0, "num_requests_running": 4.0}


def test_a_share_of_several_models_is_that_of_the_fullest():
    page = "# HELP tetrad:kv_cache_usage_perc S.\n# TYPE tetrad:kv_cache_usage_perc gauge\n" + "".join(
        f'tetrad:kv_cache_usage_perc{{model_name="{name}"}} {share}\n' for name, share in (("a", 0.75), ("b", 0.5))
    )

    assert read_metrics(page) == {"kv_cache_usage_perc": 0.75}
    assert read_metrics(merged({0: page.encode(), 1: page.encode()}).decode()) == {"kv_cache_usage_perc": 0.75}


async def test_a_frontend_that_does_not_read_is_not_waited_for(sockets, monkeypatch):
    """As a suspended one: from Python 3.12 on, closing a server waits for its connections."""
    monkeypatch.setattr(peers_module, "_TIMEOUT_S", 0.05)
    size = 10_000_000
    peers = Peers(sockets / "peers")
    await peers.serve(lambda: b"x" * size)
    reader, writer = await asyncio.open_unix_connection(sockets / "peers" / f"{peers.slots.number}.metrics", limit=1)

    await asyncio.sleep(0.3)
    await asyncio.wait_for(peers.close(), 10)
    page = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert len(page) < size
