"""Running time: a stop of the process, of any length, costs one slice of a wait."""

import asyncio

import pytest

from tetrad.services.timers.running_time import NUM_SLICES, RunningTimer, running_timeout


class Handle:
    def __init__(self, at, callback) -> None:
        self.at, self.callback, self.is_cancelled = at, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class StoppableLoop:
    """The part of an event loop that timers use. `stop_for` lets time pass in which no timer goes off."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[Handle] = []

    def call_later(self, delay_s, callback):
        self._timers.append(Handle(self.now + delay_s, callback))
        return self._timers[-1]

    def stop_for(self, seconds):
        self.now += seconds

    def run_for(self, seconds):
        end = self.now + seconds
        while due := [each for each in self._timers if each.at <= end]:
            handle = min(due, key=lambda each: each.at)
            self._timers.remove(handle)
            self.now = max(self.now, handle.at)
            if not handle.is_cancelled:
                handle.callback()
        self.now = max(self.now, end)


@pytest.fixture
def loop(monkeypatch):
    stoppable = StoppableLoop()
    monkeypatch.setattr("tetrad.services.timers.running_time.asyncio.get_running_loop", lambda: stoppable)
    return stoppable


def test_it_calls_back_once_after_the_whole_time(loop):
    calls = []
    RunningTimer(10.0, lambda: calls.append(loop.now))

    loop.run_for(9.9)
    assert calls == []
    loop.run_for(50.0)

    assert calls == [pytest.approx(10.0)]


@pytest.mark.parametrize("pause_s", [30.0, 66.0, 120.0, 86_400.0])
def test_a_stop_costs_one_slice(loop, pause_s):
    calls = []
    RunningTimer(10.0, lambda: calls.append(loop.now))

    loop.run_for(5.0)
    loop.stop_for(pause_s)
    loop.run_for(3.9)
    assert calls == []
    loop.run_for(2.0)

    assert pause_s + 10.0 - 10.0 / NUM_SLICES <= calls[0] <= pause_s + 10.0


def test_a_timer_that_is_cancelled_never_calls_back(loop):
    calls = []
    timer = RunningTimer(10.0, lambda: calls.append(1))
    loop.run_for(5.0)

    timer.cancel()
    loop.run_for(50.0)

    assert calls == []


async def test_work_that_takes_longer_is_cancelled():
    with pytest.raises(TimeoutError):
        async with running_timeout(0.01):
            await asyncio.Event().wait()


async def test_work_that_ends_in_time_is_not():
    async with running_timeout(0.05):
        await asyncio.sleep(0)

    await asyncio.sleep(0.1)


async def test_a_restart_gives_the_work_its_whole_time_again():
    with pytest.raises(TimeoutError):
        async with running_timeout(0.2) as limit:
            for _ in range(4):
                await asyncio.sleep(0.1)
                limit.restart()
            has_outlived_its_first_time = True
            await asyncio.Event().wait()

    assert has_outlived_its_first_time
