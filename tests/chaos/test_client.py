"""The client of the chaos tests excuses failures that a fault explains, and no others."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest

from tests.chaos.answers import Answer, judge
from tests.chaos.catalogue import RESPONSES, Request
from tests.chaos.client import Client, Outcome
from tests.chaos.outage import Outage

STARTING = b'{"error":{"message":"This server is starting; try again.","code":"starting"}}'


async def ask_a_server_that_hangs_up(lives: Outage, *, saying: bytes = b"") -> Outcome:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if saying:
            await reader.read(1 << 16)
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n\r\n%b" % (len(saying), saying))
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}", lives, on_tokens=lambda _: None, timeout_s=1.0, news_timeout_s=0.2)
    try:
        return await client.ask(Request("r", "/v1/completions", {}))
    finally:
        await client.close()
        server.close()


async def test_a_connection_that_breaks_without_a_kill_is_a_lost_request():
    outcome = await ask_a_server_that_hangs_up(Outage())

    assert outcome.num_retries == 0
    assert outcome.error


async def test_a_connection_that_breaks_by_a_kill_is_asked_again():
    lives = Outage()
    lives.begin()

    outcome = await ask_a_server_that_hangs_up(lives)

    assert outcome.num_retries > 0
    assert "no answer within" in outcome.error


async def test_a_frontend_that_is_starting_after_a_kill_is_asked_again():
    lives = Outage()
    lives.begin()

    assert (await ask_a_server_that_hangs_up(lives, saying=STARTING)).num_retries > 0


@pytest.mark.parametrize("saying", [STARTING, STARTING.replace(b'starting"}', b'draining"}')])
async def test_a_refusal_without_a_kill_is_a_lost_request(saying):
    outcome = await ask_a_server_that_hangs_up(Outage(), saying=saying)

    assert outcome.num_retries == 0
    assert "starting" in outcome.error


async def test_a_kill_before_a_request_is_no_excuse_for_it():
    lives = Outage()
    lives.begin()
    lives.end()

    outcome = await ask_a_server_that_hangs_up(lives)

    assert outcome.num_retries == 0


# --- errors that are answers, and responses that are kept ---------------------------------------------------------------

KEPT = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [{"content": [{"text": "hi"}]}],
    "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
}
FAILING = Request("r", "/v1/completions", {}, fails=True)
STORING = Request("r", RESPONSES, {})


def failure(message: str) -> dict:
    return {"error": {"message": message, "code": "x"}}


@contextlib.asynccontextmanager
async def client_of(answer: Callable[[str], tuple[int, dict]], disk: Outage | None = None) -> AsyncIterator[Client]:
    """Give a client of a server that answers each request line so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode()
        await reader.read(1 << 16)
        status, body = answer(line)
        data = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(data), data))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = Client(url, Outage(), on_tokens=lambda _: None, timeout_s=5.0, news_timeout_s=0.05, disk=disk)
    try:
        yield client
    finally:
        await client.close()
        server.close()


async def test_an_error_that_a_request_expects_is_its_answer():
    async with client_of(lambda line: (500, failure("This row fails."))) as client:
        outcome = await client.ask(FAILING)

    assert outcome.error is None
    assert judge(Answer(endings=1, error="This row fails."), outcome.answer) == "equal"
    assert judge(Answer(endings=1, error="The worker died."), outcome.answer) == "different"
    assert judge(Answer(endings=1), outcome.answer) == "different"


async def test_an_error_that_a_request_does_not_expect_is_a_lost_request():
    async with client_of(lambda line: (500, failure("This row fails."))) as client:
        outcome = await client.ask(Request("r", "/v1/completions", {}))

    assert outcome.error


async def test_a_stored_response_is_read_back():
    async with client_of(lambda line: (200, KEPT)) as client:
        outcome = await client.ask(STORING)

    assert outcome.error is None
    assert outcome.answer.choices[0].text == "hi"


@pytest.mark.parametrize(("status", "read"), [(404, failure("not found")), (200, KEPT | {"output": []})])
async def test_a_stored_response_that_is_not_there_or_not_the_same_is_lost(status, read):
    async with client_of(lambda line: (200, KEPT) if line.startswith("POST") else (status, read)) as client:
        outcome = await client.ask(STORING)

    assert outcome.error


async def test_a_response_that_cannot_be_stored_is_asked_again_while_the_disk_fails():
    disk, answers = Outage(), [(503, failure("full")), (200, KEPT), (200, KEPT)]
    disk.begin()

    async with client_of(lambda line: answers.pop(0), disk) as client:
        outcome = await client.ask(STORING)

    assert (outcome.error, outcome.num_retries) == (None, 1)


async def test_a_response_that_cannot_be_stored_on_a_good_disk_is_lost():
    async with client_of(lambda line: (503, failure("full"))) as client:
        outcome = await client.ask(STORING)

    assert "full" in outcome.error
