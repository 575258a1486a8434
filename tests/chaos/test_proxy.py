"""The link between two services has the configured effect on connections."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.chaos.proxy import Link

WAIT_S = 5.0


class Service:
    """Sends back what it gets; `hang_up` ends its connections."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while data := await reader.read(1000):
                writer.write(data)
        finally:
            writer.close()

    def say(self, data: bytes) -> None:
        for writer in self._writers:
            writer.write(data)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def service(socket_directory) -> AsyncIterator[Service]:
    service = Service()
    async with await asyncio.start_unix_server(service.echo, socket_directory / "service.sock"):
        yield service


@pytest.fixture
async def link(socket_directory) -> AsyncIterator[Link]:
    link = Link("a>b", socket_directory / "service.sock", socket_directory / "link.sock")
    await link.start()
    yield link
    await link.close()


@pytest.fixture
async def connect(link, socket_directory):
    writers = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(socket_directory / "link.sock")
        writers.append(writer)
        return reader, writer

    yield connect
    for writer in writers:
        writer.close()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes = b"hello") -> bytes:
    writer.write(data)
    async with asyncio.timeout(WAIT_S):
        return await reader.readexactly(len(data))


async def is_ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(WAIT_S):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


async def test_bytes_pass_both_ways_unchanged(service, connect):
    data = bytes(range(256)) * 4000

    assert await exchange(*await connect(), data) == data


async def test_a_cut_ends_the_connection_and_the_next_one_works(service, link, connect):
    reader, writer = await connect()
    await exchange(reader, writer)

    link.cut()

    assert await is_ended(reader)
    assert await exchange(*await connect()) == b"hello"


async def test_a_stalled_connection_is_silent_until_it_is_cut(service, link, connect):
    reader, writer = await connect()
    await exchange(reader, writer)
    stalling = asyncio.create_task(link.stall(0.2))
    await asyncio.sleep(0)

    writer.write(b"dropped")

    assert await is_ended(reader), "nothing of what was sent may come back"
    await stalling
    assert await exchange(*await connect()) == b"hello"


async def test_a_connection_that_is_stalled_one_way_carries_bytes_the_other_way(service, link, connect):
    reader, writer = await connect()
    await exchange(reader, writer)
    stalling = asyncio.create_task(link.stall(5, ["there"]))
    await asyncio.sleep(0)

    service.say(b"still there")
    writer.write(b"dropped")

    async with asyncio.timeout(WAIT_S):
        assert await reader.readexactly(11) == b"still there"
    stalling.cancel()
    assert await is_ended(reader), "nothing of what was sent may come back"


@pytest.mark.parametrize("ways", [["there"], ["back"], ["there", "back"]], ids="-".join)
async def test_what_is_sent_during_a_partition_arrives_behind_it(service, link, connect, ways):
    reader, writer = await connect()
    await exchange(reader, writer)
    parting = asyncio.create_task(link.partition(5, ways))
    await asyncio.sleep(0)
    writer.write(b"late")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.readexactly(4)

    parting.cancel()

    async with asyncio.timeout(WAIT_S):
        assert await reader.readexactly(4) == b"late"


async def test_the_end_of_one_side_is_not_seen_through_a_stalled_connection(service, link, connect):
    reader, writer = await connect()
    await exchange(reader, writer)
    stalling = asyncio.create_task(link.stall(0.3))
    await asyncio.sleep(0)

    service.hang_up()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.read()

    await stalling
    assert await is_ended(reader)


async def test_a_slow_link_delivers_everything_later(service, link, connect):
    reader, writer = await connect()
    loop = asyncio.get_running_loop()
    slowing = asyncio.create_task(link.slow(0.05, 5))
    await asyncio.sleep(0)

    started_at = loop.time()
    assert await exchange(reader, writer) == b"hello"

    assert loop.time() - started_at >= 0.1, "once on the way there, once on the way back"
    slowing.cancel()


async def test_garbage_reaches_both_sides(service, link, connect):
    reader, writer = await connect()
    await exchange(reader, writer)

    link.garble()

    async with asyncio.timeout(WAIT_S):
        first = await reader.readexactly(256)
    assert first == bytes(range(256))


async def test_a_caller_of_a_dead_service_sees_its_connection_end(link, connect):
    reader, _ = await connect()

    assert await is_ended(reader)


async def test_nothing_is_left_open_behind_a_client_that_left(service, link, connect):
    reader, writer = await connect()
    await exchange(reader, writer)

    writer.close()

    async with asyncio.timeout(WAIT_S):
        await link.wait_closed()
    assert link.num_connections == 0
