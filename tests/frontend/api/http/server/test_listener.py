"""The listener: its connections send without delay, detect lost clients and bound the memory of slow ones."""

import math
import os
import socket

import httpx
import pytest

from tests.frontend.api.http.server.echo import Echo
from tetrad.frontend.api.http.server.listener import bind, tune
from tetrad.frontend.api.http.server.server import HttpServer
from tetrad.frontend.api.http.server.timed_connection import ConnectionLimits
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import Unavailable

LIMITS = ConnectionLimits.of(FrontendSettings(slow_client_timeout_s=20.0), max_connections=100)


@pytest.fixture
def bound():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def options_of(connection: socket.socket) -> dict[str, int]:
    return {
        "no_delay": bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)),
        "keepalive": connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        "idle_s": connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        "interval_s": connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
        "probes": connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        "unread_ms": connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        "unsent_bytes": connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT),
    }


def test_connections_inherit_the_options(bound):
    tune(bound, 20.0)
    bound.listen()

    with socket.create_connection(bound.getsockname()), bound.accept()[0] as connection:
        assert options_of(connection) == {
            "no_delay": True,
            "keepalive": 1,
            "idle_s": 30,
            "interval_s": 10,
            "probes": 3,
            "unread_ms": 20_000,
            "unsent_bytes": 128 << 10,
        }


@pytest.mark.parametrize("seconds", [math.inf, 1e9])
def test_a_time_that_no_option_can_hold_is_the_longest_one(bound, seconds):
    tune(bound, seconds)

    assert options_of(bound)["unread_ms"] == 2**31 - 1


def test_a_host_that_no_name_can_be_is_refused():
    with pytest.raises(Unavailable, match=f"Cannot listen on {'a' * 64}:0: "):
        bind("a" * 64, 0)


async def test_the_server_sets_them_on_a_socket_that_it_is_given(bound):
    async def app(scope, receive, send):
        while (message := await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": f"{message['type']}.complete"})

    server = HttpServer(app, host="127.0.0.1", port=0, fd=os.dup(bound.fileno()), keep_alive_timeout_s=60, limits=LIMITS)
    await server.start()
    try:
        assert options_of(bound)["unread_ms"] == 20_000
    finally:
        await server.stop()


async def test_the_server_listens_on_a_path_and_removes_it(tmp_path):
    path = tmp_path / "http.sock"
    server = HttpServer(Echo(), host="127.0.0.1", port=0, uds=path, keep_alive_timeout_s=60, limits=LIMITS)

    await server.start()
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
        answer = await client.get("http://localhost/hello")
    await server.stop()

    assert answer.json()["path"] == "/hello"
    assert not path.exists()


def test_unix_sockets_have_none_of_them(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        tune(listener, 20.0)

        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
