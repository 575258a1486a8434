"""HTTP/1.1 in packets: a connection without a network reads the same requests at every packet boundary."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.frontend.api.http.server.echo import LIMITS, Echo
from tests.frontend.api.http.server.test_http1 import H2C, get, in_chunks, post
from tetrad.frontend.api.http.server.connection import connection_type
from tetrad.frontend.api.http.server.retirement import Retirement

MESSAGES = {
    "content-length": post("one") + post("two") + get("/end", "Connection: close\r\n"),
    "chunked": in_chunks("o", "ne", trailers="A: b\r\n") + in_chunks("two") + get("/end", "Connection: close\r\n"),
    "upgrade": post("one", H2C) + in_chunks("two", headers=H2C) + get("/end", H2C + "Connection: close\r\n"),
}


class Wire(asyncio.Transport):
    """Takes what a connection writes; the client reads at once."""

    def __init__(self):
        super().__init__({"sockname": ("127.0.0.1", 80), "peername": ("127.0.0.1", 1)})
        self.written, self.closed = b"", asyncio.Event()

    def write(self, data):
        self.written += data

    def close(self):
        self.closed.set()

    abort = close

    def is_closing(self):
        return self.closed.is_set()

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        pass

    resume_reading = pause_reading


async def served(pieces):
    """Return what an application was asked by a client that sends these packets, and the number of answers."""
    app, wire = Echo(), Wire()
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none")
    connection = connection_type(LIMITS, Retirement())(config, ServerState(), {})
    connection.connection_made(wire)
    for piece in pieces:
        connection.data_received(piece)
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await wire.closed.wait()
    connection.connection_lost(None)
    return [(each["path"], each["body"]) for each in app.asked], wire.written.count(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("data", MESSAGES.values(), ids=MESSAGES)
async def test_requests_are_the_same_wherever_a_packet_ends(data):
    results = [await served([data[:end], data[end:]]) for end in range(1, len(data))]

    assert results == [([("/", "one"), ("/", "two"), ("/end", "")], 3)] * (len(data) - 1)


@pytest.mark.parametrize("data", MESSAGES.values(), ids=MESSAGES)
async def test_requests_are_the_same_in_packets_of_one_byte(data):
    result = await served([data[place : place + 1] for place in range(len(data))])

    assert result == ([("/", "one"), ("/", "two"), ("/end", "")], 3)
