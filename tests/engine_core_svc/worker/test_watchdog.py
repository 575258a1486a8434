"""The watchdog fires once, only without progress, and sleeps when nothing is awaited."""

import asyncio

from tetrad.services.timers.running_time import Watchdog


async def test_it_barks_when_the_time_is_over():
    barked = asyncio.Event()
    dog = Watchdog(0.01, barked.set)

    dog.watch()

    await asyncio.wait_for(barked.wait(), 5)


async def test_progress_puts_it_off_with_one_timer():
    barked, timers = [], []
    dog = Watchdog(10.0, lambda: barked.append(len(timers)))
    dog._loop = Loop(timers)

    dog.watch()
    for _ in range(100):
        dog.watch()
        assert len(timers) == 1
        timers.pop()()
    assert barked == []

    for _ in range(10):
        timers.pop()()
    assert barked == [0]


async def test_a_process_that_was_stopped_does_not_bark_at_once():
    """A stop lets the timer that runs go off late, and no other."""
    barked, timers = [], []
    dog = Watchdog(10.0, lambda: barked.append(1))
    dog._loop = Loop(timers)
    dog.watch()

    timers.pop()()

    assert barked == []


class Loop:
    """Keeps the timers that are started."""

    def __init__(self, timers):
        self._timers = timers

    def call_later(self, delay_s, callback):
        assert delay_s == 1.0
        self._timers.append(callback)
        return asyncio.TimerHandle(0.0, callback, (), asyncio.get_running_loop())


async def test_at_rest_it_looks_once_and_sleeps():
    barked = []
    dog = Watchdog(0.01, lambda: barked.append(1))
    dog.watch()
    dog.rest()

    await asyncio.sleep(0.05)

    assert barked == []
    assert dog._timer is None
