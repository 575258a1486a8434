"""Callers with the same key share a job."""

import asyncio

import pytest

from tetrad.tokenizer_svc.media.shared_work import SharedWork


class Job:
    """A job that waits for its end, and counts how often it was started and cancelled."""

    def __init__(self) -> None:
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.num_starts = self.num_cancels = 0

    async def run(self) -> str:
        self.num_starts += 1
        try:
            return await self.end
        except asyncio.CancelledError:
            self.num_cancels += 1
            raise


async def test_a_job_runs_once_for_all() -> None:
    shared: SharedWork[str] = SharedWork()
    job = Job()
    callers = [asyncio.ensure_future(shared.run("a", job.run)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    job.end.set_result("done")

    assert await asyncio.gather(*callers) == ["done"] * 3
    assert job.num_starts == 1


async def test_a_caller_that_leaves_does_not_end_the_job_of_others() -> None:
    shared: SharedWork[str] = SharedWork()
    job = Job()
    leaving, staying = (asyncio.ensure_future(shared.run("a", job.run)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])

    job.end.set_result("done")

    assert await staying == "done"
    assert job.num_cancels == 0


async def test_the_last_caller_that_leaves_ends_it() -> None:
    shared: SharedWork[str] = SharedWork()
    job, next_job = Job(), Job()
    callers = [asyncio.ensure_future(shared.run("a", job.run)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    next_job.end.set_result("again")

    assert await shared.run("a", next_job.run) == "again"
    assert job.num_cancels == 1


async def test_all_callers_get_its_error_and_the_next_one_starts_it_again() -> None:
    shared: SharedWork[str] = SharedWork()
    job, next_job = Job(), Job()
    callers = [asyncio.ensure_future(shared.run("a", job.run)) for _ in range(2)]
    await asyncio.sleep(0)
    job.end.set_exception(ValueError("broken"))
    next_job.end.set_result("again")

    for caller in callers:
        with pytest.raises(ValueError, match="broken"):
            await caller
    assert await shared.run("a", next_job.run) == "again"
