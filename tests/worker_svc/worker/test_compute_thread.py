"""The compute thread: calls in order, errors for their callers, and no process kept alive."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from tetrad.worker_svc.worker.compute_thread import ComputeThread


@pytest.fixture
def compute():
    thread = ComputeThread()
    yield thread
    thread.close()


async def test_calls_run_in_order_on_one_thread(compute):
    calls = [compute.submit(lambda number=number: (number, threading.current_thread().name)) for number in range(20)]

    assert await asyncio.gather(*calls) == [(number, "compute") for number in range(20)]


async def test_an_error_goes_to_its_caller_and_the_next_call_runs(compute):
    failed, good = compute.submit(lambda: 1 / 0), compute.submit(lambda: 7)

    with pytest.raises(ZeroDivisionError):
        await failed
    assert await good == 7


async def test_a_stop_iteration_goes_to_its_caller_as_another_error(compute):
    """A future refuses to take one, and its caller would wait forever."""
    failed = compute.submit(next, iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(failed, 10)


async def test_a_cancelled_call_that_has_not_begun_never_runs(compute):
    go, ran = threading.Event(), []
    first = compute.submit(go.wait, 10)
    compute.submit(ran.append, 1).cancel()
    await asyncio.sleep(0)
    go.set()
    await first

    await compute.submit(ran.append, 2)

    assert ran == [2]


def test_a_call_that_never_ends_does_not_keep_the_process():
    code = (
        "import asyncio, threading\n"
        "from tetrad.worker_svc.worker.compute_thread import ComputeThread\n"
        "async def main():\n"
        "    compute, begun = ComputeThread(), threading.Event()\n"
        "    compute.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "    await asyncio.to_thread(begun.wait)\n"
        "    compute.close()\n"
        "asyncio.run(main())\n"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=20).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has a niceness of threads.")
async def test_a_nice_thread_leaves_the_other_threads_as_they_are():
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    nice = ComputeThread("adapters", niceness=1)
    try:
        assert await nice.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())) == min(own + 1, 19)
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    finally:
        nice.close()
