"""A device that hangs in a step, or fails every call: the process ends."""

import asyncio

import pytest

from tetrad.services.errors import InternalError
from tetrad.worker_svc.worker.lost_device import LostDevice


async def test_an_end_that_comes_in_time_says_nothing():
    lost, ending = LostDevice(0.01), asyncio.get_running_loop().create_future()

    lost.watch(ending)
    ending.set_result(None)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lost.wait(), 0.1)


async def test_an_end_that_does_not_come_is_an_error():
    lost = LostDevice(0.01)

    lost.watch(asyncio.get_running_loop().create_future())

    with pytest.raises(InternalError, match=r"busy with a step for 0.01 s"):
        await asyncio.wait_for(lost.wait(), 10)


async def test_a_check_that_the_device_passes_says_nothing():
    lost, checking = LostDevice(0.01), asyncio.get_running_loop().create_future()
    checking.set_result(None)

    await lost.check(checking)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lost.wait(), 0.1)


async def test_a_check_that_fails_is_an_error_and_its_caller_learns_nothing_before_the_process_ends():
    lost, checking = LostDevice(10), asyncio.get_running_loop().create_future()
    checking.set_exception(RuntimeError("an illegal memory access was encountered"))

    check = asyncio.create_task(lost.check(checking))

    with pytest.raises(InternalError, match="every call with an error: an illegal memory access was encountered"):
        await asyncio.wait_for(lost.wait(), 10)
    assert not check.done()
    check.cancel()


async def test_a_check_that_does_not_end_is_an_error():
    lost = LostDevice(0.01)
    check = asyncio.create_task(lost.check(asyncio.get_running_loop().create_future()))

    with pytest.raises(InternalError, match="busy"):
        await asyncio.wait_for(lost.wait(), 10)
    check.cancel()
