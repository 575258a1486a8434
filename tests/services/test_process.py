"""Processes: signals, exit codes and the lifeline, with real ones."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

PROGRAM = """
import asyncio, sys
from tetrad.services import errors
from tetrad.services.process import run_service
from tetrad.services.log import get_logger
from tetrad.services.settings import ServiceSettings

async def main(shutdown):
    {body}

lifeline_fd = int(sys.argv[1]) if len(sys.argv) > 1 else None
run_service("cup", ServiceSettings(lifeline_fd=lifeline_fd, loop_stall_timeout_s=1, **{settings}), main)
"""
SERVE = "print('up', flush=True); await shutdown.wait(); print('drained', flush=True)"
STUCK = "print('up', flush=True); await shutdown.wait(); await asyncio.Event().wait()"
LOAD = """print('up', flush=True); import time
    try:
        await asyncio.to_thread(time.sleep, 30)
    finally:
        print('tidied up', flush=True)"""


def start(
    body: str, *args: str, pass_fds: tuple[int, ...] = (), stderr: int = subprocess.PIPE, **settings: object
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(body=body, settings=settings), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, pass_fds=pass_fds)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_service_drain_and_exit_0(number):
    process = start(SERVE)
    assert process.stdout.readline() == "up\n"

    process.send_signal(number)
    out, _ = process.communicate(timeout=10)

    assert (process.returncode, out) == (0, "drained\n")


def test_a_ready_service_keeps_its_modules_out_of_garbage_collections():
    process = start(
        "import gc; await_stop = asyncio.ensure_future(shutdown.wait()); await asyncio.sleep(0); "
        "print(gc.get_freeze_count(), flush=True); await await_stop"
    )
    assert int(process.stdout.readline()) > 10_000

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)

    assert process.returncode == 0


def test_a_service_that_starts_searches_rarely_for_garbage_and_then_as_python_does():
    process = start(
        "import gc; from tetrad.services.timers.garbage import collect_rarely; usual = gc.get_threshold(); collect_rarely(); "
        "print(gc.get_threshold()[0] > 50 * usual[0]); await_stop = asyncio.ensure_future(shutdown.wait()); "
        "await asyncio.sleep(0); print(gc.get_threshold() == usual, flush=True); await await_stop"
    )
    assert [process.stdout.readline() for _ in range(2)] == ["True\n"] * 2

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)

    assert process.returncode == 0


def test_a_signal_ends_a_service_that_still_starts():
    """It has nothing to finish; threads that load are not waited for."""
    process = start(LOAD)
    assert process.stdout.readline() == "up\n"

    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=5)

    assert (process.returncode, out) == (0, "tidied up\n")


def test_a_second_signal_ends_a_service_that_does_not_come_to_its_end():
    process = start(STUCK)
    assert process.stdout.readline() == "up\n"

    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)

    assert process.returncode == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("ModelError", 78),
        ("Unavailable", 1),
        *(pytest.param(error, 78, marks=pytest.mark.exhaustive) for error in ("NotFound", "InvalidRequest", "Unsupported")),
    ],
)
def test_an_error_is_one_line_and_tells_whether_trying_again_can_help(error, code):
    process = start(f"raise errors.{error}('no such cup')")

    out, err = process.communicate(timeout=10)

    assert (process.returncode, out, err) == (code, "", "tetrad cup: no such cup\n")


def test_the_end_of_the_parent_ends_the_service():
    read, write = os.pipe()
    process = start(SERVE, str(read), pass_fds=(read,))
    os.close(read)
    assert process.stdout.readline() == "up\n"

    os.close(write)
    out, _ = process.communicate(timeout=10)

    assert (process.returncode, out) == (0, "drained\n")


PARENT = """
import os, subprocess, sys
read, write = os.pipe()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(read)], pass_fds=(read,), stdout=subprocess.PIPE)
os.close(read)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_stopped_service_ends_when_its_parent_is_killed():
    command = [sys.executable, "-c", PARENT, PROGRAM.format(body=SERVE, settings={})]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    child.suspend()
    while child.status() != psutil.STATUS_STOPPED:
        pass

    parent.kill()
    parent.communicate(timeout=10)

    assert gone(child)


def gone(process: psutil.Process) -> bool:
    """Wait until a process that is not ours has ended; who inherits it collects it when it likes."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    process.kill()
    return False


def test_an_event_loop_that_stands_still_ends_the_process_and_says_where():
    process = start("import time; time.sleep(30)")

    _, err = process.communicate(timeout=20)

    assert process.returncode == 1
    assert "in main" in err


def test_an_event_loop_that_stands_still_ends_the_process_also_where_nobody_reads_its_stderr():
    read, write = os.pipe()
    os.write(write, b"x" * fcntl.fcntl(write, fcntl.F_GETPIPE_SZ))

    process = start("import time; time.sleep(30)", stderr=write)
    process.communicate(timeout=20)

    assert process.returncode == 1
    for fd in (read, write):
        os.close(fd)


def test_native_code_that_keeps_the_interpreter_to_itself_ends_the_process_and_says_where():
    process = start("import re; re.match('(a+)+$', 'a' * 60 + 'b')")

    _, err = process.communicate(timeout=60)

    assert process.returncode == -signal.SIGPROF
    assert "in main" in err


def test_a_process_that_is_stopped_and_continued_lives():
    """Whether it was stopped for somewhat more than the limit of 1 s or for several times as long; both at the same time."""
    short, long = processes = [start(SERVE), start(SERVE)]
    assert [process.stdout.readline() for process in processes] == 2 * ["up\n"]

    for process in processes:
        process.send_signal(signal.SIGSTOP)
    for process, further_s in ((short, 1.5), (long, 1.5)):
        time.sleep(further_s)
        process.send_signal(signal.SIGCONT)
    for process in processes:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
    told = [process.communicate(timeout=10)[0] for process in processes]

    assert [(process.returncode, out) for process, out in zip(processes, told, strict=True)] == 2 * [(0, "drained\n")]


def test_an_event_loop_that_waits_does_not_stand_still():
    process = start("await asyncio.sleep(1.5)")

    process.communicate(timeout=20)

    assert process.returncode == 0


@pytest.mark.parametrize("as_json", [True, False])
def test_a_setting_decides_whether_the_log_is_json(as_json):
    process = start("get_logger().info('cup.filled')", log_json=as_json)

    _, err = process.communicate(timeout=10)

    [line] = [line for line in err.splitlines() if "cup.filled" in line]
    assert line.startswith("{") is as_json


def test_a_service_with_a_trace_path_writes_its_trace_there(tmp_path):
    process = start("pass", trace_path=str(tmp_path / "trace.json"))

    process.communicate(timeout=10)

    assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text())
