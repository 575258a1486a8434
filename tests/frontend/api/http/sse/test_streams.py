"""Streams over HTTP: the begin of a response, errors, and the end of work after a disconnect."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from tetrad.frontend.api.http.sse.streams import EventStream, StreamForm, until_disconnected
from tetrad.services.errors import InvalidRequest

FORM = StreamForm(closing=b"end", keep_alive=b"still here", failure=lambda error: b"failed: " + error.message.encode())


class Client:
    """An ASGI client: hears what is sent, and may leave."""

    def __init__(self):
        self.heard = []
        self._left = asyncio.Event()

    def leave(self):
        self._left.set()

    async def receive(self):
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.heard.append(message)

    @property
    def body(self):
        return [message["body"] for message in self.heard if message["type"] == "http.response.body"]


class Pieces:
    """Events of which each is asked for; tells whether it was closed."""

    def __init__(self, *pieces):
        self.closed = False
        self.next = asyncio.Queue()
        for piece in pieces:
            self.next.put_nowait(piece)

    def __aiter__(self):
        return self

    async def __anext__(self):
        piece = await self.next.get()
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def aclose(self):
        self.closed = True


END = StopAsyncIteration()


def streaming(client, pieces, keep_alive_s=60.0, **options):
    stream = EventStream(pieces, form=FORM, keep_alive_s=keep_alive_s, **options)
    return asyncio.create_task(stream({"type": "http"}, client.receive, client.send))


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nothing tells of what the client has heard
            await asyncio.sleep(0.001)


async def test_events_come_behind_the_head_and_before_the_end():
    client, pieces = Client(), Pieces(b"one", b"two", END)

    await streaming(client, pieces)

    assert client.heard[0]["type"] == "http.response.start"
    assert client.heard[0]["status"] == 200
    assert client.body == [b"one", b"two", b"end"]
    assert [message["more_body"] for message in client.heard[1:]] == [True, True, False]
    assert pieces.closed


async def test_what_fails_before_the_first_event_is_raised_and_nothing_was_sent():
    client, pieces = Client(), Pieces(InvalidRequest("no"))

    with pytest.raises(InvalidRequest, match="no"):
        await streaming(client, pieces)

    assert client.heard == []
    assert pieces.closed


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (InvalidRequest("no"), b"failed: no"),
        (ValueError("of ours"), b"failed: The stream failed; the server's log has the details."),
    ],
)
async def test_what_fails_later_is_an_event(error, event):
    client, pieces = Client(), Pieces(b"one", error)

    await streaming(client, pieces)

    assert client.body == [b"one", event, b"end"]


async def test_a_first_event_that_takes_long_comes_behind_the_head_and_so_does_its_error():
    client, pieces = Client(), Pieces()
    stream = streaming(client, pieces, keep_alive_s=0.01)
    await until(lambda: b"still here" in client.body)

    pieces.next.put_nowait(InvalidRequest("no"))
    await stream

    assert [message["type"] for message in client.heard].count("http.response.start") == 1
    assert set(client.body[:-2]) == {b"still here"}
    assert client.body[-2:] == [b"failed: no", b"end"]


async def test_a_stream_may_begin_before_there_is_any_event():
    client, pieces = Client(), Pieces()
    stream = streaming(client, pieces, at_once=True)
    await until(lambda: len(client.heard) == 2)

    pieces.next.put_nowait(END)
    await stream

    assert client.body == [b"", b"end"]


async def test_a_client_that_leaves_before_the_first_event_is_told_of():
    client, pieces = Client(), Pieces()
    stream = streaming(client, pieces)
    await asyncio.sleep(0.01)
    client.leave()

    with pytest.raises(ClientDisconnect):
        await stream
    assert client.heard == []
    assert pieces.closed


async def test_a_client_that_leaves_later_ends_the_stream():
    client, pieces = Client(), Pieces(b"one")
    stream = streaming(client, pieces)
    await until(lambda: client.body == [b"one"])
    client.leave()

    await stream

    assert client.body == [b"one"]
    assert pieces.closed


async def test_work_whose_client_stays_is_returned():
    assert await until_disconnected(Client().receive, asyncio.sleep(0.01, "done")) == "done"


async def test_work_whose_client_leaves_is_cancelled_where_it_stands():
    client, cleaned = Client(), []

    async def work():
        client.leave()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(ClientDisconnect):
        await until_disconnected(client.receive, work())
    assert cleaned == [True]
    assert asyncio.current_task().cancelling() == 0


async def test_who_cancels_from_outside_is_obeyed_even_if_the_client_leaves_at_the_same_time():
    client = Client()
    task = asyncio.create_task(until_disconnected(client.receive, asyncio.sleep(60)))
    await asyncio.sleep(0.01)
    client.leave()
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
