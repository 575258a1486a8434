"""Output without a reader: writers continue, lines are kept up to a bound, and the dropped ones are counted."""

import contextlib
import fcntl
import os
import pty
import queue
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tetrad.services.output.nonblocking_output import NonBlockingOutput

LINE = b"x" * 99 + b"\n"
PIPE_BYTES = 4096  # the smallest pipe that there is


@pytest.fixture
def pipe():
    """Return both ends of a pipe that holds one page; the write end does not block."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(write, False)
    yield read, write
    for fd in (read, write):
        with contextlib.suppress(OSError):
            os.close(fd)


def read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(fd, size - len(data))
    return data


def test_what_fits_is_written_at_once(pipe):
    read, write = pipe

    NonBlockingOutput(write, pytest.fail).write(LINE)

    assert os.read(read, 1000) == LINE


def test_what_does_not_fit_is_written_when_there_is_room(pipe):
    read, write = pipe
    output = NonBlockingOutput(write, pytest.fail)
    lines = b"".join(b"%d\n" % number for number in range(10_000))

    for line in lines.splitlines(keepends=True):
        output.write(line)

    assert read_exactly(read, len(lines)) == lines


def test_lines_beyond_the_backlog_are_dropped_and_counted(pipe):
    read, write = pipe
    dropped: queue.Queue[int] = queue.Queue()
    output = NonBlockingOutput(write, dropped.put, max_backlog_bytes=10 * len(LINE))

    for _ in range(200):
        output.write(LINE)
    num_in_backlog = 10
    received = read_exactly(read, num_in_backlog * len(LINE))
    num_dropped = dropped.get(timeout=10)
    received += os.read(read, PIPE_BYTES)

    assert received == (200 - num_dropped) * LINE
    assert num_dropped >= 200 - num_in_backlog - PIPE_BYTES // len(LINE)


def test_lines_that_cannot_be_written_are_counted_and_told_when_writing_works_again(pipe):
    read, write = pipe
    dropped: queue.Queue[int] = queue.Queue()
    output = NonBlockingOutput(write, dropped.put)
    new_read, new_write = os.pipe()
    os.close(read)

    output.write(LINE)
    output.write(LINE)
    os.dup2(new_write, write)
    output.write(LINE)

    assert os.read(new_read, 1000) == LINE
    assert dropped.get(timeout=10) == 2
    os.close(new_read)
    os.close(new_write)


BABBLE = """
import sys, threading
from tetrad.services.log import configure_logging, get_logger

configure_logging("cup")
for number in range(3_000):
    get_logger().info("cup.filled", number=number)
    print("and more" * 100, file=sys.stderr)
print("done", flush=True)
{then}
"""


def start(then: str, stderr: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BABBLE.format(then=then)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=stderr, text=True)


def test_a_process_whose_stderr_nobody_reads_goes_on_and_ends():
    process = start("sys.exit(3)", subprocess.PIPE)

    assert process.stdout.readline() == "done\n"
    assert process.wait(10) == 3
    process.communicate()


def test_a_process_on_a_terminal_that_is_stopped_goes_on_and_ends():
    """Ctrl-S."""
    leader, terminal = pty.openpty()
    termios.tcflow(terminal, termios.TCOOFF)
    process = start("sys.exit(3)", terminal)

    assert process.stdout.readline() == "done\n"
    assert process.wait(10) == 3
    process.communicate()
    os.close(leader)
    os.close(terminal)


def test_a_full_disk_under_the_log_stops_nobody():
    with Path("/dev/full").open("wb") as full:
        process = start("sys.exit(3)", full.fileno())

        assert process.stdout.readline() == "done\n"
        assert process.wait(10) == 3
        process.communicate()


def test_the_process_says_how_many_lines_it_dropped_when_somebody_reads_again():
    process = start("sys.stdin.read()", subprocess.PIPE)
    assert process.stdout.readline() == "done\n"

    lines = []
    while "log.dropped" not in (line := process.stderr.readline()):
        lines.append(line)

    assert f'"num_lines": {6_000 - len(lines)}' in line
    assert '"service": "cup"' in line
    process.communicate()


@pytest.mark.parametrize("crash", ["raise KeyError('cup')", "faulthandler.enable(); ctypes.string_at(0)"])
def test_the_traceback_of_a_crash_reaches_stderr(crash):
    source = f"""
import ctypes, faulthandler
from tetrad.services.log import configure_logging
configure_logging("cup")
def drink():
    {crash}
drink()
"""

    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=20, check=False)

    assert result.returncode != 0
    assert "in drink" in result.stderr


def test_other_processes_on_the_same_pipe_may_still_block():
    """The flags of a pipe belong to all that have inherited it: a service must not change them under others."""
    read, write = os.pipe()

    process = start("sys.exit(0)", write)
    os.close(read)
    process.communicate(timeout=20)

    assert os.get_blocking(write)
    os.close(write)
