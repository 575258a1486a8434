"""The memory bound of a tokenizer: long texts wait for each other, short ones do not, and too many are refused."""

import asyncio
import threading

import pytest

from tests.tokenizer_svc.conftest import HeldTokenizer, Serve
from tests.tokenizer_svc.errors import error_of
from tetrad.services.errors import Overloaded
from tetrad.tokenizer_svc.tokenizer.long_texts import LongTexts
from tetrad.tokenizer_svc.tokenizer.pending_calls import PendingBytes
from tetrad.v1 import tokenizer_pb2

LONG = "word " * 20_000


class Jobs:
    """Jobs that begin when a thread takes them and end when they are told to."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._go_on: dict[str, threading.Event] = {}

    def start(self, texts: LongTexts, name: str, num_bytes: int) -> asyncio.Task[str]:
        self._go_on[name] = threading.Event()
        return asyncio.create_task(texts.run(lambda: self._run(name), num_bytes))

    def end(self, *names: str) -> None:
        for name in names:
            self._go_on[name].set()

    async def next(self) -> str:
        return await asyncio.wait_for(self.began.get(), 10)

    def _run(self, name: str) -> str:
        self._loop.call_soon_threadsafe(self.began.put_nowait, name)
        assert self._go_on[name].wait(10)
        return name


async def test_texts_beyond_the_limit_wait_in_the_order_of_their_arrival() -> None:
    texts, jobs = LongTexts(threads=4, max_bytes=100), Jobs()
    tasks = [jobs.start(texts, name, size) for name, size in (("a", 60), ("b", 40), ("c", 50), ("d", 10))]
    first = {await jobs.next(), await jobs.next()}
    taken = texts.num_bytes

    jobs.end("a")
    then = {await jobs.next(), await jobs.next()}
    jobs.end("b", "c", "d")

    assert (first, taken, then) == ({"a", "b"}, 100, {"c", "d"})
    assert await asyncio.gather(*tasks) == ["a", "b", "c", "d"]
    texts.close()


async def test_a_text_longer_than_the_limit_is_encoded_alone() -> None:
    texts, jobs = LongTexts(threads=4, max_bytes=100), Jobs()
    tasks = [jobs.start(texts, "small", 1), jobs.start(texts, "huge", 200), jobs.start(texts, "next", 1)]
    encoded = []

    for name in ("small", "huge", "next"):
        encoded.append((await jobs.next(), texts.num_bytes))
        jobs.end(name)
    await asyncio.gather(*tasks)

    assert encoded == [("small", 1), ("huge", 200), ("next", 1)]
    texts.close()


async def test_the_memory_of_a_text_counts_until_its_thread_is_done_also_if_its_caller_has_left() -> None:
    texts, jobs = LongTexts(threads=4, max_bytes=100), Jobs()
    left = jobs.start(texts, "left", 100)
    await jobs.next()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)

    waiting = jobs.start(texts, "waiting", 100)
    gave_up = jobs.start(texts, "gave up", 100)
    await asyncio.sleep(0)
    gave_up.cancel()
    taken, began = texts.num_bytes, jobs.began.qsize()
    jobs.end("left", "waiting")

    assert (taken, began) == (100, 0)
    assert await waiting == "waiting"
    texts.close()


def test_what_is_pending_is_bounded_but_what_is_alone_is_taken() -> None:
    pending = PendingBytes(100, what="Texts", option="max_pending_text_bytes")

    with pending.admit(200), pytest.raises(Overloaded, match=r"of 200 bytes wait .* at most 100 .* brings 1"), pending.admit(1):
        pass
    with pending.admit(60), pending.admit(40), pytest.raises(Overloaded) as refused, pending.admit(1):
        pass

    assert refused.value.retry_after_s


async def test_short_texts_do_not_wait_for_long_ones(serve: Serve, held: HeldTokenizer) -> None:
    held.hold_from_chars = len(LONG)
    async with serve(held, threads=1) as stub:
        long = [asyncio.ensure_future(stub.Encode(tokenizer_pb2.EncodeRequest(texts=[LONG]))) for _ in range(3)]
        assert await asyncio.to_thread(held.began.wait, 10)

        short = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=["short " * 1_000]))
        are_waiting = not any(call.done() for call in long)
        held.go_on.set()

        assert are_waiting
        assert len(short.encodings) == 1
        assert len(await asyncio.gather(*long)) == 3


@pytest.mark.parametrize(
    "more",
    [
        lambda stub: stub.Encode(tokenizer_pb2.EncodeRequest(texts=["a" * 60_000])),
        lambda stub: stub.RenderChat(tokenizer_pb2.RenderChatRequest(messages_json=b" " * 60_000)),
        lambda stub: stub.RenderChat(
            tokenizer_pb2.RenderChatRequest(
                messages_json=b'[{"role": "user", "content": "Hi"}]', chat_template="{% for _ in range(60000) %}a{% endfor %}"
            )
        ),
    ],
    ids=["text", "conversation", "prompt"],
)
async def test_texts_that_are_too_many_together_are_refused(serve: Serve, held: HeldTokenizer, more) -> None:  # type: ignore[no-untyped-def]
    async with serve(held, max_pending_text_bytes=150_000) as stub:
        first = asyncio.ensure_future(stub.Encode(tokenizer_pb2.EncodeRequest(texts=[LONG])))
        assert await asyncio.to_thread(held.began.wait, 10)

        error = await error_of(more(stub))
        held.go_on.set()
        await first

        assert isinstance(error, Overloaded)
        assert "(max_pending_text_bytes)" in error.message


async def test_a_prompt_may_have_as_many_characters_as_its_frontend_says(serve: Serve) -> None:
    fields = {"messages_json": b'[{"role": "user", "content": "Hi"}]', "chat_template": "{{ 'é' * 10 }}"}
    async with serve() as stub:
        response = await stub.RenderChat(tokenizer_pb2.RenderChatRequest(**fields, max_prompt_chars=10))
        error = await error_of(stub.RenderChat(tokenizer_pb2.RenderChatRequest(**fields, max_prompt_chars=9)))

    assert response.prompt == "é" * 10
    assert "more than 9 characters" in error.message
