"""The library's lines on a program's stderr: they are written, and an unread stderr blocks nothing."""

import fcntl
import os
import subprocess
import sys

from tetrad.services.log import library_stderr

PIPE_BYTES = 4096  # the smallest pipe that there is
PROGRAM = """
from tetrad.services.log import configure_library_logging, get_logger, library_stderr

configure_library_logging("info")
for number in range(3000):
    library_stderr.write(f"line {number:04}\\n")
    get_logger().info("event")
print("written", flush=True)
input()
"""


def test_a_program_whose_stderr_is_not_read_goes_on():
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=write, text=True) as process:
        os.close(write)
        assert process.stdout.readline() == "written\n"

        with os.fdopen(read) as stderr:
            process.stdin.write("\n")
            process.stdin.close()
            lines = stderr.read().splitlines()

    assert [line for line in lines if line.startswith("line")] == [f"line {number:04}" for number in range(3000)]
    assert sum("event" in line for line in lines) == 3000


def test_lines_go_to_the_stream_that_a_program_puts_in_its_place(capsys):
    library_stderr.write("a line\n")

    assert capsys.readouterr().err == "a line\n"
