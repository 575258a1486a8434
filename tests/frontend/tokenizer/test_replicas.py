"""Several tokenizers: a lost or stalled one costs its callers little time, and one with another vocabulary is not used."""

import asyncio
import time
from types import SimpleNamespace

import grpc
import pytest

from tests.frontend.tokenizer.streams import LONG, start, until
from tetrad.frontend.tokenizer.bundle_client import bundle_chunks
from tetrad.frontend.tokenizer.client_calls import ask
from tetrad.services.errors import InternalError


@pytest.fixture
async def llm(connect, tokenizer, second):
    llm = await connect(tokenizer_targets=(tokenizer.target, second.target), tokenizer_stall_s=0.3, recovery_timeout_s=30.0)
    async with asyncio.timeout(10):
        async for report in llm.readiness.follow():
            if not any(each.problem for each in report.dependencies):
                break
    return llm


def stream_holder(*tokenizers):
    """Return the tokenizers, the one that has the Detokenize stream first."""
    return sorted(tokenizers, key=lambda each: -each.num_appends)


async def test_calls_are_spread_over_the_replicas(llm, tokenizer, second):
    for _ in range(6):
        await llm.texts.tokenize("a")

    assert (tokenizer.num_calls, second.num_calls) == (3, 3)


async def test_the_files_come_from_the_next_replica_if_the_only_one_is_lost_at_once():
    """The replica is lost after the waiting task was woken and before it runs."""
    chunks = SimpleNamespace(get_bundle=lambda **_: _as_stream(SimpleNamespace(data=b"zip", sha256="sum")))
    rounds = iter([[], [], [SimpleNamespace(link=chunks, target="t")]])
    replicas = SimpleNamespace(in_order=lambda: next(rounds), wait_usable=lambda: asyncio.sleep(0))

    found = [chunk async for chunk in bundle_chunks(replicas, timeout_s=5.0)]

    assert found == [(b"zip", "sum")]


async def _as_stream(*messages):
    for message in messages:
        yield message


async def test_a_killed_replica_costs_calls_no_waiting(llm, second):
    await second.kill()

    started = time.monotonic()
    ids = [await llm.texts.tokenize("abc") for _ in range(6)]

    assert ids == [list(b"abc")] * 6
    assert time.monotonic() - started < 0.5


def failing(code: grpc.StatusCode, *metadata: tuple[str, bytes]) -> SimpleNamespace:
    async def fail(*_):
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), "Failed parsing HTTP/2")

    return SimpleNamespace(link=SimpleNamespace(call=fail))


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE])
async def test_garbage_on_a_connection_is_no_error_of_the_request(code):
    """gRPC reports garbage as INTERNAL, the status of a service's bugs too; but those have details."""
    assert await ask(failing(code), "Encode", None) is None


async def test_a_bug_of_a_tokenizer_is_an_error_of_the_request():
    with pytest.raises(InternalError, match="HTTP/2"):
        await ask(failing(grpc.StatusCode.INTERNAL, ("grpc-status-details-bin", b"")), "Encode", None)


async def test_a_stalled_replica_holds_a_call_for_the_stall_time_once(llm, second):
    second.hung.clear()

    started = time.monotonic()
    ids = [await llm.texts.tokenize("abc") for _ in range(8)]

    assert ids == [list(b"abc")] * 8
    assert time.monotonic() - started < 0.3 * 2, "suspects are asked last"
    second.hung.set()


def endless_template(llm):
    messages = [{"role": "user", "content": "Hi"}]
    return llm.texts.encode_chat(messages, chat_template="{% for _ in range(10 ** 9) %}{% endfor %}")


def long_text(llm):
    return llm.texts.tokenize("x" * (64 << 10))


@pytest.mark.parametrize("heavy_call", [endless_template, long_text])
async def test_heavy_work_is_not_done_twice(llm, tokenizer, second, heavy_call):
    tokenizer.hung.clear()
    second.hung.clear()
    heavy = asyncio.create_task(heavy_call(llm))
    await until(lambda: num_heavy(tokenizer, second) > 0)

    light = asyncio.create_task(llm.texts.tokenize("abc"))
    await until(lambda: num_light(tokenizer, second) == 2)  # begun later, and sent to both by now
    tokenizer.hung.set()
    second.hung.set()

    assert await light == list(b"abc")
    assert await heavy
    assert num_heavy(tokenizer, second) == 1


async def test_heavy_work_goes_on_elsewhere_if_its_tokenizer_is_lost(llm, tokenizer, second):
    tokenizer.hung.clear()
    second.hung.clear()
    heavy = asyncio.create_task(long_text(llm))
    await until(lambda: num_heavy(tokenizer, second) > 0)

    holder, other = sorted((tokenizer, second), key=lambda each: -num_heavy(each))
    other.hung.set()
    await holder.kill()

    assert await heavy == [ord("x")] * (64 << 10)


def num_heavy(*fakes):
    return sum(size > 1_000 for fake in fakes for size in fake.text_sizes) + sum(len(fake.rendered) for fake in fakes)


def num_light(*fakes):
    return sum(size < 1_000 for fake in fakes for size in fake.text_sizes)


@pytest.mark.parametrize("data", [LONG.encode(), "añ€😀".encode() * 20])
async def test_the_text_goes_on_at_another_replica_at_once(llm, engine, tokenizer, second, data):
    engine.reply = lambda _, position: data[position]
    engine.pause()
    tasks = [start(llm, f"r{i}") for i in range(4)]
    await engine.until(lambda: len(engine.running) == 4)
    await engine.take(18)
    await seen(tokenizer, second, 18)

    await stream_holder(tokenizer, second)[0].kill()
    started = time.monotonic()
    await engine.allow(None)
    texts = await asyncio.gather(*tasks)

    assert texts == [data[:60].decode(errors="replace")] * 4
    assert time.monotonic() - started < 1


async def test_a_step_that_is_not_answered_moves_the_stream(llm, engine, tokenizer, second):
    """Text that the stalled tokenizer has decoded already is neither lost nor repeated."""
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await engine.take(7)
    await seen(tokenizer, second, 7)

    stalled, other = stream_holder(tokenizer, second)
    stalled.hung.clear()
    await engine.allow(None)
    text = await task

    assert text == LONG[:60]
    assert other.num_appends > 0
    stalled.hung.set()


async def test_another_tokenizer_is_not_used(connect, tokenizer, second):
    second.hash = "other"
    llm = await connect(tokenizer_targets=(tokenizer.target, second.target))
    async with asyncio.timeout(10):
        async for report in llm.readiness.follow():
            problems = [each.problem for each in report.dependencies[:2]]
            if any("another tokenizer" in problem for problem in problems):
                break

    await asyncio.gather(*(llm.texts.tokenize("a") for _ in range(6)))

    assert report.ready
    assert sorted((tokenizer.num_calls, second.num_calls)) == [0, 6]


async def test_ids_alone_do_not_wait_for_a_tokenizer(connect, engine, tokenizer):
    llm = await connect()
    await tokenizer.kill()

    async with asyncio.timeout(5):
        text = await start(llm, detokenize=False)

    assert text == ""
    assert len(engine.requests) == 1


async def seen(tokenizer, second, number):
    """Wait until the one that has the stream was sent so many steps."""
    await until(lambda: max(tokenizer.num_steps, second.num_steps) >= number)
