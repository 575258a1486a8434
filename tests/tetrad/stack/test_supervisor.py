"""The supervisor over real child processes: dead ones are restarted, a permanent failure ends all, readiness is reported."""

import asyncio
import errno
import os
import signal

import psutil
import pytest

from tests.tetrad.stack.children import SERVE, SLEEP, child
from tetrad.readiness import HealthTarget
from tetrad.services.errors import FailedPrecondition, Unavailable
from tetrad.stack.child import Child, RestartPolicy


async def test_a_child_that_dies_is_started_again(supervise):
    supervisor, states = supervise([child(SLEEP)])
    await supervisor.wait_ready()
    first = supervisor.pids()["cup"]

    os.kill(first, signal.SIGKILL)
    await states.wait_count("started", 2)

    assert ("cup", "restarting", "signal SIGKILL") in states.seen
    assert supervisor.pids()["cup"] != first


async def test_a_signal_without_a_name_is_a_reason_too(supervise):
    """Python names only the first and the last of the real-time signals."""
    supervisor, states = supervise([child(SLEEP)])
    await supervisor.wait_ready()

    os.kill(supervisor.pids()["cup"], signal.SIGRTMIN + 1)
    await states.wait_count("started", 2)

    assert ("cup", "restarting", f"signal {signal.SIGRTMIN + 1}") in states.seen


async def test_the_others_live_on_when_one_dies(supervise):
    supervisor, states = supervise([child(SLEEP, name="one"), child(SLEEP, name="other")])
    await supervisor.wait_ready()
    other = supervisor.pids()["other"]

    os.kill(supervisor.pids()["one"], signal.SIGKILL)
    await states.wait_count("started", 3)

    assert supervisor.pids()["other"] == other


async def test_a_child_that_the_system_cannot_start_now_is_started_later(supervise, monkeypatch):
    """Without memory or process ids the system makes no process for a while."""
    create, is_full = asyncio.create_subprocess_exec, False

    async def create_if_possible(*arguments, **options):
        nonlocal is_full
        if is_full:
            is_full = False
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await create(*arguments, **options)

    monkeypatch.setattr("tetrad.stack.child.asyncio.create_subprocess_exec", create_if_possible)
    supervisor, states = supervise([child(SLEEP)])
    await supervisor.wait_ready()

    is_full = True
    os.kill(supervisor.pids()["cup"], signal.SIGKILL)
    await states.wait_count("started", 2)

    assert ("cup", "restarting", "Resource temporarily unavailable") in states.seen


async def test_a_program_that_cannot_be_started_is_given_up(supervise):
    supervisor, states = supervise([Child("cup", ["/no/such/program"], {})])

    with pytest.raises(Unavailable, match=r"cup did not start, 3 times: the last time with No such file"):
        await asyncio.wait_for(supervisor.wait_ready(), 20)
    assert states.count("restarting") == 2


async def test_restarts_back_off_up_to_the_longest_delay(supervise, monkeypatch):
    delays: list[float] = []
    sleep = asyncio.sleep

    async def record(delay_s: float) -> None:
        delays.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("tetrad.stack.child.asyncio.sleep", record)
    policy = RestartPolicy(first_delay_s=1.0, max_delay_s=4.0, forget_after_s=60.0)
    _, states = supervise([child("import sys; sys.exit(3)")], policy=policy)

    await states.wait_count("restarting", 5)

    assert delays[:5] == [1.0, 2.0, 4.0, 4.0, 4.0]


async def test_a_child_that_lived_long_starts_again_at_the_first_delay(supervise, monkeypatch):
    delays: list[float] = []
    sleep = asyncio.sleep

    async def record(delay_s: float) -> None:
        delays.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("tetrad.stack.child.asyncio.sleep", record)
    _, states = supervise([child("pass")], policy=RestartPolicy(first_delay_s=1.0, forget_after_s=0.0))

    await states.wait_count("restarting", 3)

    assert delays[:3] == [1.0, 1.0, 1.0]


async def test_a_permanent_exit_ends_everything_with_the_childs_own_line(supervise, capfd):
    refuse = "import sys; sys.stderr.write('a log line\\ntetrad cup: no such model\\n'); sys.exit(78)"
    # It is ready elsewhere: a permanent exit counts whenever it comes.
    supervisor, states = supervise([child(refuse), child(SLEEP, name="other")])

    with pytest.raises(FailedPrecondition, match=r"^cup: no such model$"):
        await asyncio.wait_for(supervisor.wait_failed(), 10)

    assert states.count("restarting") == 0
    assert capfd.readouterr().err == "a log line\n"


async def test_a_permanent_exit_without_a_line_still_says_who_it_was(supervise):
    supervisor, _ = supervise([child("import sys; sys.exit(78)")])

    with pytest.raises(FailedPrecondition, match="cup"):
        await asyncio.wait_for(supervisor.wait_failed(), 10)


async def test_a_child_that_never_becomes_ready_is_given_up(supervise, make_socket):
    """Nobody waits for ever for a service that crashes at its start."""
    crash = "import sys; sys.stderr.write('tetrad cup: out of cups\\n'); sys.exit(1)"
    supervisor, states = supervise([child(crash, health=HealthTarget(make_socket("none"), "x.Y"))])

    with pytest.raises(Unavailable, match=r"3 times: cup: out of cups"):
        await asyncio.wait_for(supervisor.wait_ready(), 20)
    assert states.count("started") == 3


async def test_readiness_is_what_health_says(supervise, make_socket):
    supervisor, states = supervise([child(SERVE % make_socket("cup"), health=HealthTarget(make_socket("cup"), "x.Cup"))])

    await asyncio.wait_for(supervisor.wait_ready(), 20)
    os.kill(supervisor.pids()["cup"], signal.SIGKILL)
    await states.wait_count("ready", 2)

    assert [state for _, state, _ in states.seen] in (
        ["started", "ready", "restarting", "started", "ready"],
        # The broken stream may be seen before the exit.
        ["started", "ready", "not ready", "restarting", "started", "ready"],
    )


async def test_a_child_that_stands_still_is_killed_and_started_again(supervise, make_socket):
    health = HealthTarget(make_socket("cup"), "x.Cup")
    policy = RestartPolicy(first_delay_s=0.01, stall_timeout_s=0.2)
    supervisor, states = supervise([child(DROPS_ITS_CALLS % make_socket("cup"), health=health)], policy=policy)

    await states.wait_count("stalled", 1)
    await states.wait_count("started", 2)

    assert ("cup", "stalled", "no answer for 0.2 s") in states.seen
    assert ("cup", "restarting", "signal SIGKILL") in states.seen
    assert supervisor.pids()


async def test_a_child_that_does_not_answer_and_uses_no_cpu_time_is_killed_long_before_one_that_is_busy(supervise, make_socket):
    policy = RestartPolicy(first_delay_s=0.01, stall_timeout_s=1000.0)
    program = DROPS_ITS_CALLS % make_socket("cup")
    supervisor, states = supervise([child(program, health=HealthTarget(make_socket("cup"), "x.Cup"))], policy=policy)

    await states.wait_count("stalled", 1)

    assert ("cup", "stalled", "no answer, and no CPU time used for 1 s") in states.seen
    assert supervisor.pids()


async def test_a_child_that_does_not_answer_because_it_is_busy_lives(supervise, make_socket):
    policy = RestartPolicy(first_delay_s=0.01, stall_timeout_s=2.0)
    program = BUSY_THREAD + DROPS_ITS_CALLS % make_socket("cup")
    supervisor, states = supervise([child(program, health=HealthTarget(make_socket("cup"), "x.Cup"))], policy=policy)

    await states.wait_count("stalled", 1)

    assert ("cup", "stalled", "no answer for 2 s") in states.seen
    assert supervisor.pids()


BUSY_THREAD = """
import itertools, threading
threading.Thread(target=lambda: all(map(lambda _: True, itertools.count())), daemon=True).start()
"""

# A server that ends each Watch at once and answers nothing else: what a stopped process looks like after its pings broke.
DROPS_ITS_CALLS = """
import asyncio, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

class Health(health_pb2_grpc.HealthServicer):
    async def Watch(self, request, context):
        yield health_pb2.HealthCheckResponse(status=1)

    async def Check(self, request, context):
        await asyncio.Event().wait()

async def main():
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
    server.add_insecure_port(%r)
    await server.start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_two_children_that_die_at_once_both_come_back(supervise):
    supervisor, states = supervise([child(SLEEP, name="one"), child(SLEEP, name="other")])
    await supervisor.wait_ready()
    before = supervisor.pids()

    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    await states.wait_count("started", 4)

    after = supervisor.pids()
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())


async def test_fifty_restarts_leave_no_descriptor_and_no_task_behind(supervise):
    supervisor, states = supervise([child("pass"), child(SLEEP, name="other")], policy=RestartPolicy(0.001, 0.001))
    await states.wait_count("restarting", 2)
    process = psutil.Process()
    fds, threads, tasks = process.num_fds(), process.num_threads(), len(asyncio.all_tasks())

    await states.wait_count("restarting", 52)

    assert process.num_fds() <= fds + 4  # of the child that is being started just now
    assert process.num_threads() <= threads + 1
    assert len(asyncio.all_tasks()) <= tasks + 4
    assert sum(each.status() == psutil.STATUS_ZOMBIE for each in process.children()) <= 1
    assert supervisor.pids()["other"]
