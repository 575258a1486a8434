"""The Batch stream to one tokenizer: its calls, and their fate when it breaks."""

import asyncio
import itertools

import grpc
import pytest

from tests.frontend.fakes import FakeTokenizer
from tetrad.frontend.tokenizer.client_stream import BatchStream
from tetrad.frontend.tokenizer.link import TokenizerChannel
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import tokenizer_pb2

IDS = itertools.count(1)


class Told(FakeTokenizer):
    """Answers when and what the test says."""

    def __init__(self, path):
        super().__init__(path)
        self.received = asyncio.Queue()
        self.to_send = asyncio.Queue()
        self.num_streams = 0

    async def Batch(self, request_iterator, context):
        self.num_streams += 1
        receiving = asyncio.create_task(self._receive(request_iterator))
        try:
            while (answer := await self.to_send.get()) is not None:
                yield answer
        finally:
            receiving.cancel()

    async def _receive(self, requests):
        async for request in requests:
            self.received.put_nowait(request)


class Unread(FakeTokenizer):
    """Reads one message, and answers it when it is told to."""

    def __init__(self, path):
        super().__init__(path)
        self.answering, self.go_on = asyncio.Event(), asyncio.Event()

    async def Batch(self, request_iterator, context):
        request = await anext(request_iterator)
        self.answering.set()
        await self.go_on.wait()
        yield answer_to(request, "stayed")
        await asyncio.Event().wait()


@pytest.fixture
async def told(sockets):
    told = Told(sockets / "told")
    await told.start()
    yield told
    await told.kill()


@pytest.fixture
async def stream(told):
    channel = open_channel(told.target)
    stream = BatchStream(TokenizerChannel(channel))
    yield stream
    await stream.close()
    await channel.close()


def ask(stream):
    return asyncio.create_task(stream.ask(tokenizer_pb2.BatchRequest(id=next(IDS))))


def answer_to(request, text=""):
    rendered = tokenizer_pb2.BatchedAnswer(render_chat=tokenizer_pb2.RenderChatResponse(prompt=text))
    return tokenizer_pb2.BatchResponse(id=request.id, answers=[rendered])


def prompt_of(response):
    return response.answers[0].render_chat.prompt


async def test_answers_come_in_any_order(stream, told):
    asked = [ask(stream), ask(stream)]
    first, second = [await told.received.get() for _ in asked]
    told.to_send.put_nowait(answer_to(second, "second"))
    told.to_send.put_nowait(answer_to(first, "first"))

    assert [prompt_of(each) for each in await asyncio.gather(*asked)] == ["first", "second"]
    assert told.num_streams == 1


async def test_an_answer_that_nobody_waits_for_is_passed_over(stream, told):
    left = ask(stream)
    of_left = await told.received.get()
    left.cancel()
    stayed = ask(stream)
    of_stayed = await told.received.get()
    told.to_send.put_nowait(answer_to(of_left, "left"))
    told.to_send.put_nowait(tokenizer_pb2.BatchResponse(id=999_999))
    told.to_send.put_nowait(answer_to(of_stayed, "stayed"))

    assert prompt_of(await stayed) == "stayed"
    assert left.cancelled()


async def test_a_tokenizer_that_is_lost_breaks_what_is_under_way_and_the_next_has_a_stream_of_its_own(stream, told):
    asked = [ask(stream), ask(stream)]
    for _ in asked:
        await told.received.get()
    await told.kill()
    broken = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in broken] == [grpc.aio.AioRpcError] * 2

    await told.start()
    again = ask(stream)
    while told.received.empty():
        if again.done():  # gRPC waits a little before it connects anew
            again = ask(stream)
        await asyncio.sleep(0.01)
    told.to_send.put_nowait(answer_to(await told.received.get(), "again"))
    assert prompt_of(await again) == "again"


async def test_a_stream_that_the_tokenizer_ends_breaks_what_is_under_way(stream, told):
    asked = ask(stream)
    await told.received.get()
    told.to_send.put_nowait(None)

    with pytest.raises(ConnectionError, match="ended"):
        await asked


async def test_who_closes_the_stream_breaks_what_is_under_way(stream, told):
    asked = ask(stream)
    await told.received.get()
    await stream.close()

    with pytest.raises(ConnectionError, match="closed"):
        await asked


async def test_a_stream_that_is_closed_before_it_was_used_leaves_nobody_waiting(stream):
    asked = ask(stream)
    await asyncio.sleep(0)  # it has asked, and nothing was sent yet
    await stream.close()

    with pytest.raises(ConnectionError, match="closed"):
        await asked


async def test_who_gives_up_while_nothing_can_be_written_disturbs_nobody(sockets):
    unread = Unread(sockets / "unread")
    await unread.start()
    channel = open_channel(unread.target)
    stream = BatchStream(TokenizerChannel(channel))
    stayed = ask(stream)
    await unread.answering.wait()
    long = tokenizer_pb2.BatchedCall(encode=tokenizer_pb2.EncodeRequest(texts=["a" * 1_000_000]))
    leaving = [asyncio.create_task(stream.ask(tokenizer_pb2.BatchRequest(id=next(IDS), calls=[long]))) for _ in range(20)]
    await asyncio.sleep(0.2)  # more than the connection holds
    for each in leaving:
        each.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    unread.go_on.set()

    assert prompt_of(await stayed) == "stayed"
    await stream.close()
    await channel.close()
    await unread.kill()


async def test_a_stream_whose_channel_is_closed_is_broken_too(told):
    channel = open_channel(told.target)
    stream = BatchStream(TokenizerChannel(channel))
    asked = ask(stream)
    await told.received.get()
    await channel.close()

    with pytest.raises(ConnectionError, match="closed"):
        await asked
