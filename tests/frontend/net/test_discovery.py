"""Discovery: the addresses of targets, their changes, and failed lookups."""

import asyncio
import socket
import threading
import time

import pytest

from tetrad.frontend.net.discovery import Discovery, Endpoint, check_target, system_lookup
from tetrad.services.errors import InvalidRequest


class Names:
    """A resolver at the edge: what it knows changes when the test says so."""

    def __init__(self, **addresses):
        self.addresses = addresses
        self.num_lookups = 0

    async def __call__(self, name, port):
        self.num_lookups += 1
        if name not in self.addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return self.addresses[name]


class Rounds(asyncio.Queue):
    """What discovery tells, round after round."""

    async def until(self, condition):
        async with asyncio.timeout(10):
            while True:
                if condition(found := await self.get()):
                    return found


@pytest.fixture
async def discover():
    """`discover(targets, names)` gives a Discovery and its rounds."""
    started = []

    def start(targets, names=None, interval_s=0.01):
        discovery, rounds = Discovery(targets, lookup=names or Names(), interval_s=interval_s), Rounds()
        started.append(discovery)
        discovery.start(rounds.put_nowait)
        return discovery, rounds

    yield start
    for discovery in started:
        await discovery.close()


def addresses(endpoints):
    return [endpoint.target for endpoint in endpoints]


async def test_a_target_that_is_no_name_stands_for_itself_at_once(discover):
    _, rounds = discover(("host:1", "unix:/a"))

    assert rounds.get_nowait() == [Endpoint(0, "host:1"), Endpoint(1, "unix:/a")]


async def test_a_name_stands_for_each_of_its_addresses_in_order(discover):
    names = Names(engines=["10.0.0.10", "10.0.0.9", "10.0.0.9"])

    _, rounds = discover(("host:1", "dns:///engines:50052"), names)

    found = await rounds.until(lambda found: len(found) == 3)
    assert found[1:] == [Endpoint(1, "ipv4:10.0.0.9:50052", "engines"), Endpoint(1, "ipv4:10.0.0.10:50052", "engines")]


async def test_who_comes_and_goes_is_told(discover):
    names = Names(engines=["10.0.0.1", "10.0.0.2"])
    _, rounds = discover(("dns:///engines:1",), names)
    await rounds.until(lambda found: len(found) == 2)

    names.addresses["engines"] = ["10.0.0.2", "10.0.0.3"]

    assert await rounds.until(lambda found: addresses(found) == ["ipv4:10.0.0.2:1", "ipv4:10.0.0.3:1"])


async def test_a_name_that_cannot_be_looked_up_now_stands_for_what_it_did(discover):
    names = Names(engines=["10.0.0.1"])
    discovery, rounds = discover(("dns:///engines:1",), names)
    await rounds.until(lambda found: found)

    del names.addresses["engines"]
    before = names.num_lookups
    found = await rounds.until(lambda _: names.num_lookups > before + 1)

    assert addresses(found) == ["ipv4:10.0.0.1:1"]
    assert discovery.problem == ""


async def test_a_round_that_cannot_be_taken_is_followed_by_another():
    """As while certificates are replaced: who came is not connected to, this time."""
    taken = asyncio.Event()

    def take(found):
        if names.num_lookups == 1:
            raise InvalidRequest("the certificate and the key are not of the same pair")
        if names.num_lookups > 1:
            taken.set()

    names = Names(service=["10.0.0.1"])
    discovery = Discovery(("dns:///service:50052",), lookup=names, interval_s=0.01)

    discovery.start(take)

    await asyncio.wait_for(taken.wait(), 10)
    await discovery.close()


async def test_a_name_that_nobody_knows_is_a_problem_until_somebody_does(discover):
    names = Names()
    discovery, rounds = discover(("dns:///engines:1",), names)
    while not discovery.problem:
        await rounds.get()
    problem = discovery.problem

    names.addresses["engines"] = ["10.0.0.1"]
    await rounds.until(lambda found: found)

    assert "dns:///engines:1 has no addresses" in problem
    assert discovery.problem == ""


async def test_after_a_loss_the_name_is_asked_at_once(discover):
    names = Names(engines=["10.0.0.1"])
    discovery, rounds = discover(("dns:///engines:1",), names, interval_s=1000)
    await rounds.until(lambda found: found)

    discovery.look_again()
    await rounds.until(lambda found: found)

    assert names.num_lookups == 2


async def test_addresses_of_ipv6_are_written_in_brackets(discover):
    _, rounds = discover(("dns:///engines:1",), Names(engines=["fd00::2"]))

    assert await rounds.until(lambda found: found) == [Endpoint(0, "ipv6:[fd00::2]:1", "engines")]


async def test_the_system_knows_localhost_as_one_process():
    """It has an address of IPv6 there, too, on most machines."""
    assert await system_lookup("localhost", 1) == ["127.0.0.1"]


async def test_what_can_be_no_name_is_an_error_and_no_end_of_asking():
    with pytest.raises((OSError, ValueError)):
        await asyncio.wait_for(system_lookup("x" * 70, 1), 10)


def test_a_resolver_that_hangs_keeps_nobody_from_ending(monkeypatch):
    hangs, asked = threading.Event(), threading.Event()

    def getaddrinfo(*_, **__):
        asked.set()
        hangs.wait(30)
        return []

    async def look_up_in_vain():
        looking = asyncio.create_task(system_lookup("name", 1))
        await asyncio.to_thread(asked.wait, 10)
        looking.cancel()

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    started = time.monotonic()
    asyncio.run(look_up_in_vain())
    took_s = time.monotonic() - started
    hangs.set()

    assert took_s < 10


@pytest.mark.parametrize("target", ["dns:///engines", "dns:///:1", "dns:///a:0", "dns:///a:65536", "dns:///a:b", "dns:////a:1"])
def test_a_name_without_a_port_is_refused(target):
    with pytest.raises(InvalidRequest, match="dns:///name:port"):
        check_target(target)


@pytest.mark.parametrize(
    ("endpoint", "admin_targets", "paired"),
    [
        (Endpoint(1, "b:1"), ("a:9", "b:9"), Endpoint(1, "b:9")),
        (Endpoint(0, "ipv4:10.0.0.1:1", "engines"), ("dns:///engines:9",), Endpoint(0, "ipv4:10.0.0.1:9", "engines")),
        (Endpoint(0, "ipv6:[fd00::1]:1", "e"), ("dns:///admins:9",), Endpoint(0, "ipv6:[fd00::1]:9", "admins")),
        (Endpoint(1, "b:1"), ("a:9",), None),
        (Endpoint(0, "ipv4:10.0.0.1:1", "engines"), ("127.0.0.1:9",), None),
        (Endpoint(0, "a:1"), ("dns:///engines:9",), None),
    ],
    ids=["in order", "by address", "IPv6", "too few", "a name and an address", "an address and a name"],
)
def test_an_admin_port_belongs_to_the_engine_core_at_its_place_or_address(endpoint, admin_targets, paired):
    assert endpoint.on_port_of(admin_targets) == paired
