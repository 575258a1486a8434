"""A step that does not end: the process does, once nobody waits for the step any more."""

import asyncio

import pytest

from tetrad.services.errors import InternalError
from tetrad.worker_svc.worker.stuck_device import StuckDevice


async def test_an_end_that_comes_in_time_says_nothing():
    stuck, ending = StuckDevice(0.01), asyncio.get_running_loop().create_future()

    stuck.watch(ending)
    ending.set_result(None)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stuck.wait(), 0.1)


async def test_an_end_that_does_not_come_is_an_error():
    stuck = StuckDevice(0.01)

    stuck.watch(asyncio.get_running_loop().create_future())

    with pytest.raises(InternalError, match=r"busy with a step for 0.01 s"):
        await asyncio.wait_for(stuck.wait(), 10)
