"""Connections of HTTP: their number, slow and silent clients, what could be read in two ways. Over real sockets."""

import asyncio
import json
import socket
import struct

import pytest

from tests.frontend.fakes import TEXT


def request(body, path="/v1/completions", headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


async def talk(frontend, data, timeout_s=10):
    """Send bytes on a new connection; return everything that comes until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), timeout_s)
    except ConnectionResetError:
        return b""  # closed before everything that was sent had been read
    finally:
        writer.close()


PROMPT = {"prompt": "hi", "max_tokens": 9}


async def test_the_frontend_answers_head_and_options_of_the_whole_server(frontend):
    head = await frontend.http.head("/health")
    endless = await frontend.http.head("/console/events")
    options = await talk(frontend, b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert (head.status_code, head.content) == (200, b"")
    assert (endless.status_code, endless.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    assert options.startswith(b"HTTP/1.1 204 ")


async def test_a_completion_offered_over_http_2_is_answered_over_http_1(frontend):
    upgrade = "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"

    answer = await talk(frontend, request(PROMPT, headers=upgrade))

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == TEXT[:9]


async def test_slow_heads_and_bodies_are_answered_with_408(serve_frontend):
    async with serve_frontend(header_timeout_s=0.2, body_timeout_s=0.3) as frontend:
        head, body, silent, line_breaks = await asyncio.gather(
            talk(frontend, b"POST /v1/completions HTTP/1.1\r\nHost:"),
            talk(frontend, request(b"x" * 100)[:-50]),
            talk(frontend, b""),
            talk(frontend, b"\r\n\r\n"),
        )

    assert head.startswith(b"HTTP/1.1 408 ")
    assert body.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body.partition(b"\r\n\r\n")[2])["error"]["message"].startswith("The request's body did not arrive")
    assert (silent, line_breaks) == (b"", b"")


async def test_a_request_that_is_answered_slowly_is_not_late(serve_frontend, engine):
    engine.pause()
    async with serve_frontend(header_timeout_s=0.1, body_timeout_s=0.1) as frontend:
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json=PROMPT))
        await asyncio.sleep(0.4)
        await engine.allow(None)

        assert (await asking).status_code == 200


async def test_connections_beyond_the_limit_are_told_so(serve_frontend):
    async with serve_frontend(max_connections=2) as frontend:
        others = [await asyncio.open_connection("127.0.0.1", frontend.port) for _ in range(2)]
        refused = await talk(frontend, b"")
        for _, writer in others:
            writer.close()
            await writer.wait_closed()
        served = await frontend.http.get("/health")

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert served.status_code == 200


async def send_and_read(frontend, data):
    """Send everything, then read the beginning of the answer, as simple clients do."""
    reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
    writer.write(data)
    await writer.drain()
    answer = await reader.read(1000)
    writer.close()
    return answer


async def test_a_client_beyond_the_limit_reads_the_refusal_although_it_has_sent_a_request(serve_frontend):
    """A connection that is closed with unread bytes is reset, and the answer is lost."""
    body = b"x" * (8 << 20)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with serve_frontend(max_connections=2) as frontend:
        others = [await asyncio.open_connection("127.0.0.1", frontend.port) for _ in range(2)]
        refused = [await send_and_read(frontend, head + body) for _ in range(20)]
        for _, writer in others:
            writer.close()
            await writer.wait_closed()
        served = await frontend.http.get("/health")

    assert [answer[:13] for answer in refused] == [b"HTTP/1.1 503 "] * 20
    assert served.status_code == 200


async def test_a_refused_client_that_stays_is_dropped(serve_frontend):
    async with serve_frontend(max_connections=1) as frontend:
        _, first = await asyncio.open_connection("127.0.0.1", frontend.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
        answer = await reader.read()
        for _ in range(100):
            await asyncio.sleep(0.05)
            try:
                writer.write(b"x")
                await writer.drain()
            except ConnectionError:
                break
        first.close()

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert writer.is_closing() or writer.transport.is_closing()


async def test_requests_in_a_row_are_answered_and_a_flood_is_not(frontend):
    get = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    assert (await talk(frontend, get * 9 + last)).count(b"HTTP/1.1 200") == 10
    assert (await talk(frontend, get * 5000)).count(b"HTTP/1.1 200") < 100


@pytest.mark.parametrize(
    "data",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 300 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(frontend, data):
    answer = await talk(frontend, data)

    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
    assert answer.count(b"HTTP/1.1") == 1


async def test_chunks_that_are_mostly_framing_end_the_connection(frontend):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    answer = await talk(frontend, head + b"1;" + b"x" * 300_000)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


async def test_a_client_that_reads_nothing_is_dropped_and_its_request_aborted(serve_frontend, engine):
    engine.pause()  # or it would be done before anybody is found to be slow
    async with serve_frontend(slow_client_timeout_s=0.3) as frontend:
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", frontend.port))
            # Long chunks: each token comes with the log-probabilities of many others.
            body = {"prompt": "hi", "max_tokens": 400, "n": 40, "stream": True, "logprobs": 5, "ignore_eos": True}
            await loop.sock_sendall(client, request(body))
            await engine.allow(300)

            await engine.until(lambda: len(engine.aborted) > 0)
            await engine.allow(None)

        assert (await frontend.http.post("/v1/completions", json=PROMPT)).status_code == 200


def reset(writer):
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("leave", [reset, asyncio.StreamWriter.close, asyncio.StreamWriter.write_eof])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_resets_closes_or_half_closes_its_connection_has_left(frontend, engine, stream, leave):
    """Whoever closes a connection and whoever closes only its sending side look the same until something is written."""
    engine.pause()
    _, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
    writer.write(request(PROMPT | {"stream": stream}))
    await engine.until(lambda: len(engine.requests) == 1)

    leave(writer)

    await engine.until(lambda: len(engine.aborted) == 1)
    writer.close()
