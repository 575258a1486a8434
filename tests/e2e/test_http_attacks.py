"""Hostile HTTP clients against a whole stack: each is refused or times out, and other clients are served in ordinary time."""

import asyncio
import contextlib
import json
import select
import socket
import time

import httpx
import psutil
import pytest

MODEL = "smollm2-135m-instruct"
PROMPT = {"model": MODEL, "prompt": "hi", "max_tokens": 4}
# A busy test machine is slow; an event loop that is held up is slower.
ORDINARY_S = 5.0
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def stack(start_module_server):
    return start_module_server("--device", "sim", "--tokenizer-pool-size", "1")


async def talk(stack, *pieces, timeout_s=20):
    """Send pieces on one connection; return what comes until the server ends it, as far as it could be read."""
    host, port = stack.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    try:
        # A server that has answered may close while we still send.
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(timeout_s):
                while piece := await reader.read(1 << 16):
                    answer += piece
                    if b"content-length" in answer and b"connection: close" not in answer:
                        break
    finally:
        writer.close()
    return answer


async def beside(stack, attack):
    """Run an attack; return its result and the longest time in which somebody else was served meanwhile."""
    longest_s = 0.0
    task = asyncio.create_task(attack)
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        while True:
            start = time.monotonic()
            assert (await client.post("/v1/completions", json=PROMPT)).status_code == 200
            longest_s = max(longest_s, time.monotonic() - start)
            if task.done():
                return task.result(), longest_s


def attacked(stack, attack):
    """Run an attack beside a client that is served in ordinary time; return the attack's result."""
    result, longest_s = asyncio.run(beside(stack, attack))
    assert longest_s < ORDINARY_S
    assert stack.process.poll() is None
    return result


def status(answer):
    return int(answer[9:12])


def post(stack, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return attacked(stack, send(stack, path, data))


async def send(stack, path, data):
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        return await client.post(path, content=data, headers={"content-type": "application/json"})


def test_64_mb_are_refused_by_their_length_before_they_are_read(stack):
    answer = attacked(stack, talk(stack, POST + b"Content-Length: 67108864\r\n\r\n"))

    assert status(answer) == 413


def test_64_mb_without_a_length_are_refused_where_the_limit_is_passed(stack):
    megabyte = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"

    answer = attacked(stack, talk(stack, POST + b"Transfer-Encoding: chunked\r\n\r\n", *[megabyte] * 64, b"0\r\n\r\n"))

    assert status(answer) == 413


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\na: " + b"x" * (1 << 20),
        b"GET /" + b"x" * (1 << 20),
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
    ],
    ids=["one header", "the path", "ten thousand headers"],
)
def test_heads_of_a_megabyte_are_refused(stack, head):
    answer = attacked(stack, talk(stack, head + b"\r\n\r\n"))

    assert answer == b"" or status(answer) == 431


@pytest.mark.parametrize(
    "data",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: x\r\n\r\n",
        POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\nGET /admin HTTP/1.1\r\nHost: x\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        POST + b"Content-Length: -5\r\n\r\n",
        POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
        POST + b"X: a\rb\r\n\r\n",
        POST + b" folded: header\r\n\r\n",
    ],
)
def test_requests_that_two_servers_would_read_differently_are_refused(stack, data):
    answer = attacked(stack, talk(stack, data))

    assert answer == b"" or status(answer) in (400, 413, 501)
    assert b"/admin" not in answer
    assert answer.count(b"HTTP/1.1 ") <= 1


def test_a_flood_of_requests_on_one_connection_is_cut_off(stack):
    answer = attacked(stack, talk(stack, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000))

    assert answer.count(b"HTTP/1.1 200") < 1000


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"])
@pytest.mark.parametrize(
    "body",
    [b'{"prompt":' + b"[" * 100_000, b'{"messages":' + b'{"a":' * 100_000, b"[" * 1_000_000 + b"]" * 1_000_000],
    ids=["lists", "objects", "closed lists"],
)
def test_deeply_nested_bodies_are_refused(stack, path, body):
    assert post(stack, path, body).status_code == 400


def nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


MESSAGE = {"role": "user", "content": "a"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [MESSAGE] * 100_000}),
        ("/v1/chat/completions", {"messages": [MESSAGE], "tools": [TOOL] * 100_000}),
        ("/v1/messages", {"messages": [MESSAGE] * 100_000, "max_tokens": 5}),
        ("/v1/responses", {"input": [MESSAGE] * 100_000}),
        ("/v1/completions", {"prompt": "a", "stop": ["x"] * 100_000}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(100_000)}}),
        ("/v1/completions", {"prompt": "a", "bad_words": ["x"] * 100_000}),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [2**40] * 100_000}),
        ("/v1/completions", {"prompt": [1000] * 1_000_000}),
        ("/v1/completions", {"prompt": ["a"] * 1_000_000}),
        ("/v1/completions", {"prompt": [[1000]] * 1_000_000}),
        ("/v1/completions", {"prompt": "a" * 20_000_000}),
        ("/v1/completions", {"prompt": "a", "n": 10**9}),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": nested(150)}}),
        ("/v1/chat/completions", {"messages": [MESSAGE], "temperature": float("nan")}),
        ("/v1/chat/completions", {"messages": [MESSAGE], "temperature": float("inf")}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_far_too_much_of_anything_is_refused(stack, path, fields):
    response = post(stack, path, {"model": MODEL} | fields)

    assert 400 <= response.status_code < 500, response.text[:300]
    assert len(response.content) < 4096


@pytest.mark.parametrize(
    "body", [b'{"prompt": "\xff\xfe"}', b'{"prompt": 1' + b"0" * 100_000 + b"}", b'{"prompt": "\\ud800"}', b"\x00" * 1000]
)
def test_what_is_no_json_is_refused(stack, body):
    assert post(stack, "/v1/completions", body).status_code == 400


@pytest.fixture(scope="module")
def impatient(start_module_server):
    """A stack that waits 1 s for what a client sends, and 1 s until it reads."""
    limits = ("--header-timeout-s", "1", "--body-timeout-s", "1", "--slow-client-timeout-s", "1")
    return start_module_server("--device", "sim", "--tokenizer-pool-size", "1", *limits)


def test_slow_and_silent_clients_are_waited_out(impatient):
    """200 connections with half a head, half a body or nothing: all are closed, and nobody else notices."""
    stack = impatient
    halves = [b"", b"POST /v1/completions HT", POST + b"Content-Length: 100\r\n\r\n{", POST + b"X-A: b\r\n"]

    async def attack():
        return await asyncio.gather(*(talk(stack, halves[number % 4]) for number in range(200)))

    answers = attacked(stack, attack())

    assert {answer[:13] for answer in answers} == {b"", b"HTTP/1.1 408 "}


def test_clients_that_read_nothing_cost_little_and_slow_nobody(impatient):
    """50 clients that ask for long answers and read none of it: memory stays bounded, and they are dropped."""
    stack = impatient
    body = json.dumps(PROMPT | {"max_tokens": 1500, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
    host, port = stack.url.removeprefix("http://").split(":")
    before = stack.memory_bytes()

    def num_connections():
        found = [each for process in stack.processes() for each in process.net_connections("tcp")]
        return sum(each.laddr.port == int(port) and each.status == psutil.CONN_ESTABLISHED for each in found)

    async def attack():
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(socket.socket()) for _ in range(50)]
            for client in clients:
                # What fits the buffers of this machine has been read, as far as the server can know.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                await loop.sock_connect(client, (host, int(port)))
                await loop.sock_sendall(client, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            for client in clients:
                answered = await asyncio.to_thread(select.select, [client], [], [], 20)
                assert answered[0]
            # The client that is served beside has one.
            while num_connections() > 3:  # noqa: ASYNC110 - connections of another process
                await asyncio.sleep(0.1)

    attacked(stack, asyncio.wait_for(attack(), 40))

    stack.wait_idle(5)
    after = stack.memory_bytes()
    assert after - before < 200 << 20
