"""The supervisor over real child processes: tiny Python programs that live, die and refuse as they are told."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tetrad.child import Child, RestartPolicy
from tetrad.readiness import HealthTarget
from tetrad.services.errors import FailedPrecondition, Unavailable
from tetrad.supervisor import Supervisor

SLEEP = "import signal; signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); signal.pause()"
QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.04)


def child(source: str, *, name: str = "cup", **fields) -> Child:
    return Child(name, (sys.executable, "-c", source), {"PATH": os.environ["PATH"]}, **fields)


class States:
    """Remembers what the supervisor says, and lets a test wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self._changed = asyncio.Condition()
        self._notifying: list[asyncio.Task[None]] = []

    def __call__(self, name: str, state: str, why: str) -> None:
        self.seen.append((name, state, why))
        self._notifying.append(asyncio.create_task(self._notify()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def count(self, state: str) -> int:
        return sum(seen == state for _, seen, _ in self.seen)

    async def wait_count(self, state: str, number: int) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: self.count(state) >= number)


@pytest.fixture
async def supervise():
    """Return a maker of started supervisors: groups of children -> (supervisor, states)."""
    running: list[Supervisor] = []

    def start(*groups: list[Child], policy: RestartPolicy = QUICK, stop_timeout_s: float = 2.0) -> tuple[Supervisor, States]:
        states = States()
        running.append(Supervisor(groups, policy=policy, on_state=states, stop_timeout_s=stop_timeout_s))
        running[-1].start()
        return running[-1], states

    yield start
    for supervisor in running:
        await supervisor.stop()


async def test_a_child_that_dies_is_started_again(supervise):
    supervisor, states = supervise([child(SLEEP)])
    await supervisor.wait_ready()
    first = supervisor.pids()["cup"]

    os.kill(first, signal.SIGKILL)
    await states.wait_count("started", 2)

    assert ("cup", "restarting", "signal SIGKILL") in states.seen
    assert supervisor.pids()["cup"] != first


async def test_the_others_live_on_when_one_dies(supervise):
    supervisor, states = supervise([child(SLEEP, name="one"), child(SLEEP, name="other")])
    await supervisor.wait_ready()
    other = supervisor.pids()["other"]

    os.kill(supervisor.pids()["one"], signal.SIGKILL)
    await states.wait_count("started", 3)

    assert supervisor.pids()["other"] == other


async def test_restarts_back_off_up_to_the_longest_delay(supervise, monkeypatch):
    delays: list[float] = []
    sleep = asyncio.sleep

    async def record(delay_s: float) -> None:
        delays.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("tetrad.child.asyncio.sleep", record)
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

    monkeypatch.setattr("tetrad.child.asyncio.sleep", record)
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


SERVE = """
import asyncio
from tetrad.services.server import Server
from tetrad.services.settings import ServiceSettings

async def main():
    server = Server(ServiceSettings(listen=%r), {"x.Cup": lambda server: None})
    await server.start()
    await server.health.set_ready(True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_child_that_stands_still_is_killed_and_started_again(supervise, make_socket):
    health = HealthTarget(make_socket("cup"), "x.Cup")
    policy = RestartPolicy(first_delay_s=0.01, stall_timeout_s=0.2)
    supervisor, states = supervise([child(DROPS_ITS_CALLS % make_socket("cup"), health=health)], policy=policy)

    await states.wait_count("stalled", 1)
    await states.wait_count("started", 2)

    assert ("cup", "stalled", "no answer for 0.2 s") in states.seen
    assert ("cup", "restarting", "signal SIGKILL") in states.seen
    assert supervisor.pids()


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


async def test_a_restart_waits_for_no_delay_and_returns_when_the_next_is_ready(supervise):
    supervisor, states = supervise([child(SLEEP)], policy=RestartPolicy(first_delay_s=60.0))
    await supervisor.wait_ready()
    first = supervisor.pids()["cup"]

    await asyncio.wait_for(supervisor.restart("cup"), 10)

    assert supervisor.pids()["cup"] != first
    assert ("cup", "restarting", "as asked") in states.seen


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


async def test_what_retires_ends_with_the_stop_too(supervise):
    ignores = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); signal.pause()"
    supervisor, states = supervise([child(ignores)])
    await supervisor.wait_ready()
    old = psutil.Process(supervisor.pids()["cup"])
    await supervisor.replace(child(SLEEP), retire_timeout_s=60.0)
    await states.wait_count("retiring", 1)

    await asyncio.wait_for(supervisor.stop(), 5)

    assert await asyncio.to_thread(gone, old)


async def test_what_dies_while_it_retires_is_not_started_again(supervise):
    ignores = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); signal.pause()"
    supervisor, states = supervise([child(ignores)])
    await supervisor.wait_ready()
    old = psutil.Process(supervisor.pids()["cup"])
    await supervisor.replace(child(SLEEP), retire_timeout_s=60.0)
    await states.wait_count("retiring", 1)
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


async def test_stop_ends_a_child_that_ignores_it(supervise, capfd):
    supervisor, _ = supervise([child(f"import sys; sys.stdout = sys.stderr; {STUBBORN}")], stop_timeout_s=0.2)
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
from tetrad.child import Child
from tetrad.supervisor import Supervisor

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


def gone(process: psutil.Process, wait: Callable = psutil.wait_procs) -> bool:
    _, alive = wait([process], timeout=5)
    return not alive
