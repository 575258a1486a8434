"""IdleTimer: calls back without activity, and only then."""

import asyncio

from tetrad.services.timers.idle_timer import IdleTimer


async def test_it_calls_back_again_and_again_until_it_is_stopped():
    calls, enough = [], asyncio.Event()

    def on_idle():
        calls.append(1)
        if len(calls) == 3:
            timer.stop()
            enough.set()

    timer = IdleTimer(0.01, on_idle)

    await asyncio.wait_for(enough.wait(), 5)
    assert len(calls) == 3


async def test_notes_put_it_off():
    loop, called = asyncio.get_running_loop(), asyncio.Event()
    start = loop.time()
    timer = IdleTimer(0.1, called.set)
    loop.call_later(0.08, timer.note)

    await asyncio.wait_for(called.wait(), 5)

    timer.stop()
    assert loop.time() - start >= 0.18
