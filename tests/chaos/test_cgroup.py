"""A process without memory: the kernel kills it when it takes more, and lets it live if it does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.cgroup import starved, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

PROGRAM = """
print("up", flush=True)
for line in iter(input, "end"):
    taken = bytearray(int(line))
    print(len(taken), flush=True)
"""


@pytest.fixture
def process():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def test_a_process_that_takes_more_than_it_may_is_killed(process):
    with starved(process.pid, 1 << 20):
        process.stdin.write(f"{64 << 20}\n")
        assert process.wait(20) == -9


def test_a_process_that_takes_nothing_lives_and_may_take_more_afterwards(process):
    home = Path(f"/proc/{process.pid}/cgroup").read_text()

    with starved(process.pid, 8 << 20):
        assert Path(f"/proc/{process.pid}/cgroup").read_text() != home
    process.stdin.write(f"{64 << 20}\n")

    assert process.stdout.readline() == f"{64 << 20}\n"
    assert Path(f"/proc/{process.pid}/cgroup").read_text() == home
