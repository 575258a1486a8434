"""EventLoopThread: an interrupt of the calling thread cancels the work, at whatever moment it comes."""

import asyncio
from concurrent.futures import CancelledError

import pytest

from tetrad.library.event_loop_thread import EventLoopThread


@pytest.fixture
def loop():
    thread = EventLoopThread()
    yield thread
    thread.close()


def test_an_interrupt_while_work_is_scheduled_cancels_it(loop, monkeypatch):
    schedule = asyncio.run_coroutine_threadsafe
    is_cancelled = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled.append(True)
            raise

    def interrupted(coroutine, its_loop):
        future = schedule(coroutine, its_loop)
        schedule(asyncio.sleep(0), its_loop).result()  # the work has begun
        raise KeyboardInterrupt(future)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        loop.run(work())
    [future] = raised.value.args

    with pytest.raises(CancelledError):
        future.result(timeout=10)
    assert is_cancelled


def test_work_returns_its_result_and_raises_its_error(loop):
    async def work(value: object) -> object:
        if isinstance(value, Exception):
            raise value
        return value

    assert loop.run(work(3)) == 3
    with pytest.raises(ValueError, match="four"):
        loop.run(work(ValueError("four")))
