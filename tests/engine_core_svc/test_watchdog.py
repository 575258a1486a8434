"""The watchdog barks once, only when nothing has come, and is asleep when nothing is awaited."""

import asyncio

from tetrad.engine_core_svc.watchdog import Watchdog


async def test_it_barks_when_the_time_is_over():
    barked = asyncio.Event()
    dog = Watchdog(0.01, barked.set)

    dog.watch()

    await asyncio.wait_for(barked.wait(), 5)


async def test_progress_puts_it_off_with_one_timer():
    barked, timers = [], []
    dog = Watchdog(10.0, lambda: barked.append(clock.now))

    class Clock:
        now = 0.0

        def time(self):
            return self.now

        def call_at(self, when, callback):
            timers.append((when, callback))
            return asyncio.TimerHandle(when, callback, (), asyncio.get_running_loop())

    dog._loop = clock = Clock()
    for clock.now in (0.0, 4.0, 8.0):
        dog.watch()
    assert [when for when, _ in timers] == [10.0]

    clock.now = 10.0
    timers[0][1]()
    assert [when for when, _ in timers] == [10.0, 18.0]
    clock.now = 18.0
    timers[1][1]()
    assert barked == [18.0]


async def test_at_rest_it_looks_once_and_sleeps():
    barked = []
    dog = Watchdog(0.01, lambda: barked.append(1))
    dog.watch()
    dog.rest()

    await asyncio.sleep(0.05)

    assert barked == []
    assert dog._timer is None
