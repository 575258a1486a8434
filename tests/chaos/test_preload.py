"""The library between a process and its clock and disk: it changes those, and nothing else."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.machine import why_not
from tests.chaos.preload import Preload

pytestmark = pytest.mark.skipif(why_not("preload") is not None, reason=str(why_not("preload")))

MODULE = "chaos_example"
EXAMPLE = """
import datetime, os, pathlib, queue, socket, sys, tempfile, threading, time

def say(value):
    print(value, flush=True)

def refused(work):
    try:
        work()
    except OSError as error:
        return error.errno
    return 0

def write():
    with tempfile.NamedTemporaryFile(dir=sys.argv[1]) as file:
        file.write(b"x")

for line in sys.stdin:
    if line == "clock\\n":
        say((time.time(), datetime.datetime.now().timestamp(), time.monotonic()))
    elif line == "wait\\n":
        started = time.monotonic()
        threading.Event().wait(0.05)
        say(time.monotonic() - started)
    else:
        here, there = socket.socketpair()
        say((refused(write), refused(lambda: here.send(b"x"))))
"""


@pytest.fixture
def preload(tmp_path) -> Preload:
    return Preload(tmp_path, (MODULE,))


@pytest.fixture
def ask(preload, tmp_path):
    """Return a function that gives the controlled process a line and returns what it says."""
    (tmp_path / f"{MODULE}.py").write_text(EXAMPLE)
    environment = {**preload.environment(), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", MODULE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:

        def ask(line: str):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            return eval(process.stdout.readline())

        yield ask
        process.stdin.close()


@pytest.mark.parametrize("offset_s", [-3600, 3600])
def test_the_wall_clock_steps_and_the_monotonic_one_does_not(preload, ask, offset_s):
    preload.set_clock(MODULE, offset_s)

    wall, date, monotonic = ask("clock")

    assert wall - time.time() == pytest.approx(offset_s, abs=60)
    assert date - time.time() == pytest.approx(offset_s, abs=60)
    assert monotonic == pytest.approx(time.monotonic(), abs=60)


@pytest.mark.parametrize("offset_s", [-3600, 3600])
def test_a_wait_takes_as_long_as_before(preload, ask, offset_s):
    preload.set_clock(MODULE, offset_s)

    assert 0.04 < ask("wait") < 60


def test_what_is_written_to_files_fails_and_sockets_do_not(preload, ask):
    before = ask("write")
    preload.set_disk_errno(MODULE, 28)
    during = ask("write")
    preload.set_disk_errno(MODULE, 0)

    assert (before, during, ask("write")) == ((0, 0), (28, 0), (0, 0))


def test_a_process_without_a_control_is_as_it_is(preload, tmp_path):
    preload.set_clock(MODULE, 3600)

    told = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"], env=preload.environment(), capture_output=True, check=True
    )

    assert float(told.stdout) == pytest.approx(time.time(), abs=60)
    assert Path(tmp_path / "controls" / MODULE).is_file()
