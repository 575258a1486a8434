"""Replaced children: the successor is ready before its predecessor retires."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.tetrad.stack.children import SERVE, SLEEP, child, gone
from tetrad.readiness import HealthTarget
from tetrad.services.errors import FailedPrecondition
from tetrad.stack.child import RestartPolicy


async def test_a_restart_waits_for_no_delay_and_returns_when_the_next_is_ready(supervise):
    supervisor, states = supervise([child(SLEEP)], policy=RestartPolicy(first_delay_s=60.0))
    await supervisor.wait_ready()
    first = supervisor.pids()["cup"]

    await asyncio.wait_for(supervisor.restart("cup"), 10)

    assert supervisor.pids()["cup"] != first
    assert ("cup", "restarting", "as asked") in states.seen


async def test_a_restart_waits_for_no_child_that_another_one_has_not_made_ready(supervise):
    """A worker whose engine core sleeps."""
    supervisor, states = supervise([child(SLEEP, health=NOBODY, is_led=True)])
    await states.wait_count("started", 1)

    await asyncio.wait_for(supervisor.restart("cup"), 10)

    await states.wait_count("started", 2)
    assert states.count("ready") == 0


async def test_a_successor_is_ready_before_its_predecessor_retires(supervise, tmp_path):
    retired = tmp_path / "retired"
    write = f"open({str(retired)!r}, 'w').write('x')"
    retires = f"import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: ({write}, sys.exit(0))); signal.pause()"
    supervisor, states = supervise([child(retires)])
    await supervisor.wait_ready()
    old = psutil.Process(supervisor.pids()["cup"])

    await asyncio.wait_for(supervisor.replace(child(SLEEP), retire_timeout_s=5.0), 10)

    assert supervisor.pids()["cup"] != old.pid
    assert [state for _, state, _ in states.seen[:4]] == ["started", "ready", "started", "ready"]
    assert await asyncio.to_thread(gone, old)


async def test_a_successor_that_cannot_start_leaves_its_predecessor_alone(supervise):
    supervisor, _ = supervise([child(SLEEP)])
    await supervisor.wait_ready()
    old = supervisor.pids()["cup"]

    with pytest.raises(FailedPrecondition, match="no such cup"):
        refuse = "import sys, time; sys.stderr.write('tetrad cup: no such cup\\n'); sys.exit(78)"
        await asyncio.wait_for(supervisor.replace(child(refuse, health=NOBODY), retire_timeout_s=5.0), 10)

    assert supervisor.pids()["cup"] == old
    assert psutil.pid_exists(old)


NOBODY = HealthTarget("unix:/tmp/nobody-listens-here.sock", "x.Cup")


async def supervise_a_retiring_child(supervise):
    """Return a supervisor, its states, and a process that has a successor and does not end."""
    ignores = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); signal.pause()"
    supervisor, states = supervise([child(ignores)])
    await supervisor.wait_ready()
    old = psutil.Process(supervisor.pids()["cup"])
    await supervisor.replace(child(SLEEP), retire_timeout_s=60.0)
    await states.wait_count("retiring", 1)
    return supervisor, states, old


async def test_what_retires_ends_with_the_stop_too(supervise):
    supervisor, _, old = await supervise_a_retiring_child(supervise)

    await asyncio.wait_for(supervisor.stop(), 5)

    assert await asyncio.to_thread(gone, old)


async def test_what_dies_while_it_retires_is_not_started_again(supervise):
    supervisor, states, old = await supervise_a_retiring_child(supervise)
    successor = supervisor.pids()["cup"]

    old.kill()

    assert await asyncio.to_thread(gone, old)
    # That one is a child like any other.
    os.kill(successor, signal.SIGKILL)
    await states.wait_count("started", 3)
    assert states.count("restarting") == 1


async def test_what_is_killed_while_it_retires_leaves_no_socket(supervise, make_socket):
    addresses = make_socket("one"), make_socket("two")
    old, new = (child(SERVE % address, health=HealthTarget(address, "x.Cup")) for address in addresses)
    supervisor, _ = supervise([old])
    await asyncio.wait_for(supervisor.wait_ready(), 20)

    # SIGUSR1 ends a program that does not handle it.
    await asyncio.wait_for(supervisor.replace(new, retire_timeout_s=5.0), 20)

    paths = [Path(address.removeprefix("unix:")) for address in addresses]
    async with asyncio.timeout(10):
        while paths[0].exists():  # noqa: ASYNC110 - files have no events
            await asyncio.sleep(0.01)
    assert paths[1].exists()
