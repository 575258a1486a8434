"""The network of the chaos tests: TCP over it works, and has the configured losses and delays."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.chaos.machine import why_not
from tests.chaos.network import Network
from tests.chaos.proxy import Link

pytestmark = pytest.mark.skipif(why_not("tun") is not None, reason=str(why_not("tun")))

WAIT_S = 20.0
DATA = bytes(range(256)) * 400


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    network = Network()
    network.open()
    yield network
    network.close()


@pytest.fixture
async def link(network, socket_directory) -> AsyncIterator[Link]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(10_000):
            writer.write(data)
        writer.close()

    link = Link("a>b", socket_directory / "service.sock", network=network)
    async with await asyncio.start_unix_server(echo, socket_directory / "service.sock"):
        await link.start()
        yield link
        await link.close()


@pytest.fixture
async def connection(link) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = link.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield reader, writer
    writer.transport.abort()


async def exchange(connection, data: bytes = b"hello") -> bytes:
    reader, writer = connection
    writer.write(data)
    async with asyncio.timeout(WAIT_S):
        return await reader.readexactly(len(data))


async def test_bytes_pass_unchanged(connection):
    assert await exchange(connection, DATA) == DATA


async def test_lost_packets_are_sent_again(link, connection):
    losing = asyncio.create_task(link.lose(0.2, WAIT_S))
    await asyncio.sleep(0)

    assert await exchange(connection, DATA) == DATA

    losing.cancel()


async def test_packets_out_of_order_are_put_in_order(link, connection):
    delaying = asyncio.create_task(link.reorder(0.02, WAIT_S))
    await asyncio.sleep(0)

    assert await exchange(connection, DATA) == DATA

    delaying.cancel()


@pytest.mark.parametrize("ways", [["there"], ["back"], ["there", "back"]], ids="-".join)
async def test_what_is_sent_during_a_partition_arrives_behind_it(link, connection, ways):
    reader, writer = connection
    await exchange(connection)
    parting = asyncio.create_task(link.partition(WAIT_S, ways))
    await asyncio.sleep(0)
    writer.write(b"late")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.readexactly(4)

    parting.cancel()

    async with asyncio.timeout(WAIT_S):
        assert await reader.readexactly(4) == b"late"
