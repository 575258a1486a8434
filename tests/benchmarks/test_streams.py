"""The benchmarks' HTTP client yields every chunk of a stream, at every split of the bytes into packets."""

import asyncio
import json

import pytest

from benchmarks.http_load import _rate_together, run_load
from benchmarks.streams import StreamClient, completion_request

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 12}}\n\n'
CHUNK = b'data: {"choices": [{"text": "a"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class FakeTransport(asyncio.Transport):
    """A connection to the test."""

    def __init__(self, client: StreamClient) -> None:
        super().__init__()
        self.client, self.sent = client, b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.client.connection_lost(None)


async def client_of(*pieces: bytes) -> StreamClient:
    """Return a client that has read these pieces, one by one, and whose connection is open."""
    client = StreamClient(b"request", asyncio.get_running_loop())
    client.connection_made(FakeTransport(client))
    for piece in pieces:
        client.data_received(piece)
    return client


async def test_gaps_are_between_chunks_and_not_before_the_first():
    client = await client_of(HEAD, CHUNK, CHUNK, CHUNK + USAGE + DONE)
    client.connection_lost(None)

    assert not client.error
    assert len(client.chunk_times_s) == 3
    assert len(client.gaps_s) == 2
    assert client.answered_s <= client.first_chunk_s <= client.total_s


@pytest.mark.parametrize("cut", [5, len(USAGE) - 12, len(USAGE) + 4])
async def test_usage_and_end_are_found_however_they_are_cut(cut):
    ending = USAGE + DONE

    client = await client_of(HEAD + CHUNK, ending[:cut], ending[cut:])
    client.connection_lost(None)

    assert (client.num_tokens, client.error) == (12, "")


async def test_the_chunk_that_carries_the_usage_is_no_token():
    client = await client_of(HEAD, CHUNK, CHUNK + CHUNK, USAGE, DONE)

    assert client.chunk_sizes == [1, 2]


async def test_a_stream_without_its_end_is_an_error():
    client = await client_of(HEAD, CHUNK)
    client.connection_lost(None)

    assert "cut off" in client.error


async def test_started_is_told_of_the_first_chunk_and_of_an_end_without_one():
    waiting, begun, ended = await client_of(HEAD), await client_of(HEAD, CHUNK), await client_of(HEAD)
    ended.connection_lost(None)

    assert [each.started.done() for each in (waiting, begun, ended)] == [False, True, True]


async def test_a_client_may_leave_in_the_middle():
    client = await client_of(HEAD, CHUNK)

    client.leave()

    assert client.done.done()


async def test_the_rate_counts_only_the_time_in_which_all_decode():
    early, late = await client_of(), await client_of()
    early.chunk_times_s, early.chunk_sizes = [0.0, 1.0, 2.0, 3.0], [1, 1, 1, 1]
    late.chunk_times_s, late.chunk_sizes = [1.0, 2.0, 3.0, 4.0], [1, 1, 1, 1]

    assert _rate_together([early, late], 4) == 2.0  # from 1 s to 3 s: two tokens each


async def test_the_rate_counts_tokens_where_chunks_hold_several():
    client = await client_of()
    client.chunk_times_s, client.chunk_sizes = [0.0, 1.0, 2.0, 3.0], [1, 1, 1, 1]

    assert _rate_together([client], 8) == 2.0


async def test_a_load_whose_answers_are_too_short_fails():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + CHUNK + USAGE + DONE)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async with server:
        with pytest.raises(ExceptionGroup, match="unhandled") as caught:
            await run_load(url, model="m", concurrency=1, num_requests=1, max_tokens=13, prompt_len=3)

    assert "12 tokens instead of 13" in str(caught.value.exceptions[0])


def test_a_prompt_goes_as_it_is():
    body = completion_request("http://127.0.0.1:1", {"prompt": [7, 8]}).partition(b"\r\n\r\n")[2]

    assert json.loads(body) == {"stream": True, "prompt": [7, 8]}
