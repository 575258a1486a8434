"""Retirement: every connection ends with `Connection: close`, and none while a request may be on its way.

A server that stops closes idle connections at once, and busy ones after their response.
"""

import asyncio

import pytest

from tetrad.frontend.api.http.server import retirement
from tetrad.frontend.api.http.server import server as http_server
from tetrad.frontend.api.http.server.server import HttpServer
from tetrad.frontend.api.http.server.timed_connection import ConnectionLimits

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIMITS = ConnectionLimits(
    max_connections=100,
    max_header_bytes=4096,
    max_body_bytes=4096,
    header_timeout_s=10.0,
    body_timeout_s=10.0,
    slow_client_timeout_s=10.0,
)


class App:
    """Begins and ends each response when told to, and has been told from the start."""

    def __init__(self) -> None:
        self.may_begin, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_begin.set()
        self.may_end.set()
        self.was_asked = asyncio.Event()
        self.end_of_upload = ""  # type of the event that ended an upload

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.was_asked.set()
        if scope["method"] == "POST":
            while (event := await receive()).get("more_body"):
                pass
            self.end_of_upload = event["type"]
            return
        await self.may_begin.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b"k", "more_body": False})


@pytest.fixture
async def app():
    return App()


@pytest.fixture
async def server(app):
    server = HttpServer(app, host="127.0.0.1", port=0, keep_alive_timeout_s=60, limits=LIMITS)
    await server.start()
    yield server
    app.may_begin.set()
    app.may_end.set()
    await server.stop()


async def connect(server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(10):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", server.port)
            except ConnectionRefusedError:
                await asyncio.sleep(0)


async def ask(reader, writer) -> str:
    """Send a request and return the head of the answer, whose body is read, too."""
    writer.write(REQUEST)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
    return head.decode().lower()


async def test_an_idle_connection_gets_one_more_answer_and_ends_with_it(server):
    reader, writer = await connect(server)
    assert "connection: close" not in await ask(reader, writer)

    retiring = asyncio.create_task(server.retire())
    await asyncio.sleep(0)
    head = await ask(reader, writer)

    assert "connection: close" in head
    assert await asyncio.wait_for(reader.read(), 5) == b""
    await asyncio.wait_for(retiring, 5)
    writer.close()


async def test_a_response_that_promised_to_keep_the_connection_does(server, app):
    app.may_end.clear()
    reader, writer = await connect(server)
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"connection: close" not in head.lower()

    retiring = asyncio.create_task(server.retire())
    await asyncio.sleep(0)
    app.may_end.set()
    assert await reader.readexactly(2) == b"ok"

    assert "connection: close" in await ask(reader, writer)
    await asyncio.wait_for(retiring, 5)
    writer.close()


async def test_a_response_that_had_not_begun_says_that_it_is_the_last(server, app):
    app.may_begin.clear()
    reader, writer = await connect(server)
    asking = asyncio.create_task(ask(reader, writer))
    await asyncio.wait_for(app.was_asked.wait(), 5)

    retiring = asyncio.create_task(server.retire())
    await asyncio.sleep(0)
    app.may_begin.set()

    assert "connection: close" in await asking
    await asyncio.wait_for(retiring, 5)
    writer.close()


async def test_a_connection_that_comes_late_is_not_kept_open_for_nothing(server, monkeypatch):
    monkeypatch.setattr(retirement, "IDLE_S", 0.01)
    server.close_connections_with_answers()

    reader, writer = await connect(server)

    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_connection_on_which_nothing_comes_is_closed_after_a_while(server, monkeypatch):
    monkeypatch.setattr(retirement, "IDLE_S", 0.01)
    reader, writer = await connect(server)
    await ask(reader, writer)

    await asyncio.wait_for(server.retire(), 5)

    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_nothing_new_is_accepted(server):
    reader, writer = await connect(server)
    await ask(reader, writer)

    retiring = asyncio.create_task(server.retire())
    await asyncio.sleep(0)

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    retiring.cancel()
    writer.close()


async def test_a_server_that_stops_closes_idle_connections_and_ends_the_answers_in_progress(server, app):
    (idle, idle_writer), (busy, busy_writer) = await connect(server), await connect(server)
    await ask(idle, idle_writer)
    app.may_end.clear()
    busy_writer.write(REQUEST)
    await busy.readuntil(b"\r\n\r\n")

    stopping = asyncio.create_task(server.stop())

    assert await asyncio.wait_for(idle.read(), 5) == b""
    assert not stopping.done()
    app.may_end.set()
    assert await asyncio.wait_for(busy.read(), 5) == b"ok"
    await asyncio.wait_for(stopping, 5)
    idle_writer.close()
    busy_writer.close()


async def test_a_server_that_stops_does_not_wait_for_an_answer_that_never_ends(server, app, monkeypatch):
    monkeypatch.setattr(http_server, "_CLOSE_TIMEOUT_S", 0.01)
    reader, writer = await connect(server)
    app.may_end.clear()
    writer.write(REQUEST)
    await reader.readuntil(b"\r\n\r\n")

    await asyncio.wait_for(server.stop(), 5)

    assert await asyncio.wait_for(reader.read(), 5) == b"o"
    writer.close()


async def test_a_server_that_stops_ends_a_half_sent_request_as_if_its_client_had_left(server, app, monkeypatch):
    monkeypatch.setattr(http_server, "_CLOSE_TIMEOUT_S", 0.01)
    _, writer = await connect(server)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
    await asyncio.wait_for(app.was_asked.wait(), 5)

    await asyncio.wait_for(server.stop(), 5)

    assert app.end_of_upload == "http.disconnect"
    writer.close()
