"""Time slices: a task lets others run once its slice is over, and not before."""

import asyncio

from tetrad.services.timers.time_slice import TimeSlice


async def test_others_run_when_the_slice_is_over():
    now = 0.0
    others = []
    time_slice = TimeSlice(lambda: now)
    asyncio.get_running_loop().call_soon(others.append, "ran")

    await time_slice.check()
    assert not others

    now = 1.0
    await time_slice.check()
    assert others
