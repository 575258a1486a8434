"""Overlapping commands: a failed sleep command resumes exactly the work that it had stopped."""

import asyncio
from types import SimpleNamespace

import pytest

from tetrad.engine_core_svc.engine.orders import Orders
from tetrad.engine_core_svc.engine.sleep import Sleeper
from tetrad.services.errors import FailedPrecondition, Unavailable


class Link:
    """A link to a worker that cannot sleep."""

    async def sleep(self, level):
        raise FailedPrecondition("no room on the host")


@pytest.fixture
async def sleeper():
    return Sleeper(Link(), None, None)


@pytest.fixture
async def orders(sleeper):
    return Orders(SimpleNamespace(admitting=True, running=[]), sleeper, abort_all=lambda: None, on_change=lambda: None)


async def given(*sleeps):
    """Give orders to sleep; return their tasks."""
    tasks = [asyncio.create_task(each) for each in sleeps]
    await asyncio.sleep(0)
    return tasks


async def until_failed(tasks, error):
    for task in tasks:
        with pytest.raises(error):
            await task


async def test_an_engine_that_was_paused_and_is_woken_up_before_it_slept_is_not_paused(orders):
    orders.pause()
    tasks = await given(orders.sleep(1))

    await orders.wake_up(())
    await until_failed(tasks, Unavailable)

    assert not orders.is_paused


@pytest.mark.parametrize("num_orders", [1, 2])
async def test_an_engine_that_cannot_sleep_goes_on(orders, sleeper, num_orders):
    tasks = await given(*(orders.sleep(1) for _ in range(num_orders)))
    was_paused = orders.is_paused

    await sleeper.rest()
    await until_failed(tasks, FailedPrecondition)

    assert (was_paused, orders.is_paused) == (True, False)


async def test_an_engine_that_was_paused_and_cannot_sleep_stays_paused(orders, sleeper):
    orders.pause(finish_running=True)
    tasks = await given(orders.sleep(1))
    was_frozen = orders.is_frozen

    await sleeper.rest()
    await until_failed(tasks, FailedPrecondition)

    assert (was_frozen, orders.is_frozen, orders.is_paused) == (True, False, True)


async def test_a_pause_during_an_order_that_fails_stays(orders, sleeper):
    tasks = await given(orders.sleep(1))
    orders.pause()

    await sleeper.rest()
    await until_failed(tasks, FailedPrecondition)

    assert orders.is_paused


async def test_an_order_fails_in_the_same_way_when_nobody_waits_for_it_any_more(orders, sleeper):
    [task] = await given(orders.sleep(1))
    task.cancel()

    await sleeper.rest()
    await asyncio.gather(task, return_exceptions=True)

    assert not orders.is_paused
