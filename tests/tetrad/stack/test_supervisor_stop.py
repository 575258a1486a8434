"""A supervisor that is stopped, or killed: in order, in time, and no child outlives it."""

import asyncio
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.tetrad.stack.children import SLEEP, child, gone
from tetrad.stack.child import RestartPolicy

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); signal.pause()"


async def test_a_child_that_dies_while_the_others_are_stopped_stays_dead(supervise):
    """The second group's child dies while the first one is still being waited for."""
    supervisor, states = supervise([child(STUBBORN, name="slow")], [child(SLEEP, name="fast")], stop_timeout_s=1.0)
    await supervisor.wait_ready()
    processes = [psutil.Process(pid) for pid in supervisor.pids().values()]
    fast = supervisor.pids()["fast"]

    stopping = asyncio.create_task(supervisor.stop())
    await asyncio.sleep(0)
    os.kill(fast, signal.SIGKILL)
    await asyncio.wait_for(stopping, 5)

    assert states.count("started") == 2
    assert states.count("restarting") == 0
    assert all([await asyncio.to_thread(gone, process) for process in processes])


async def test_stop_ends_a_child_that_ignores_it(supervise, capfd):
    supervisor, _ = supervise([child(f"import sys; sys.stdout = sys.stderr; {STUBBORN}")], stop_timeout_s=0.2)
    await supervisor.wait_ready()
    [pid] = supervisor.pids().values()

    await asyncio.wait_for(supervisor.stop(), 5)

    assert not psutil.pid_exists(pid)


async def test_a_child_may_have_a_stop_timeout_of_its_own(supervise):
    source = f"import sys; sys.stdout = sys.stderr; {STUBBORN}"
    supervisor, _ = supervise([child(source, stop_timeout_s=0.2)], stop_timeout_s=60.0)
    await supervisor.wait_ready()
    [pid] = supervisor.pids().values()

    await asyncio.wait_for(supervisor.stop(), 5)

    assert not psutil.pid_exists(pid)


async def test_groups_are_stopped_in_order(supervise, tmp_path):
    def note(name: str) -> str:
        write = f"open({str(tmp_path / 'order')!r}, 'a').write({name!r})"
        return (
            f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: ({write}, sys.exit(0)));"
            f" open({str(tmp_path / name)!r}, 'w').close(); signal.pause()"
        )

    supervisor, _ = supervise([child(note("a"), name="a")], [child(note("b"), name="b")])
    async with asyncio.timeout(10):
        while not all((tmp_path / name).exists() for name in "ab"):  # noqa: ASYNC110 - files have no events
            await asyncio.sleep(0.01)

    await supervisor.stop()

    assert (tmp_path / "order").read_text() == "ab"


async def test_stop_while_a_child_waits_for_its_restart(supervise):
    supervisor, states = supervise([child("import sys; sys.exit(1)")], policy=RestartPolicy(first_delay_s=60.0))
    await states.wait_count("restarting", 1)

    await asyncio.wait_for(supervisor.stop(), 2)


async def test_stop_right_after_start_leaves_nothing(supervise):
    supervisor, _ = supervise([child(SLEEP)])
    await asyncio.sleep(0)

    await asyncio.wait_for(supervisor.stop(), 5)

    assert not [process for process in psutil.Process().children() if SLEEP in process.cmdline()]


PARENT = """
import asyncio, os, signal, sys
from tetrad.stack.child import Child
from tetrad.stack.supervisor import Supervisor

CHILD = "import os, sys; os.read(int(sys.argv[1]), 1)"
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it, as nohup does

async def main():
    read, write = os.pipe()
    child = Child("cup", (sys.executable, "-c", CHILD, str(read)), dict(os.environ), pass_fds=(read,))
    supervisor = Supervisor([[child]])
    supervisor.start()
    await supervisor.wait_ready()
    print(supervisor.pids()["cup"], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_orphan_outlives_a_parent_that_is_killed(number):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    orphan = psutil.Process(int(parent.stdout.readline()))

    parent.send_signal(number)
    parent.communicate(timeout=10)

    assert gone(orphan)
