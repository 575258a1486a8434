"""A process that takes a rank's place in shared memory, for tests that stop it or kill it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROGRAM = """
import fcntl, os, struct, sys, time
file, rank = os.open(sys.argv[1], os.O_RDWR), int(sys.argv[2])
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0))
print("joined", flush=True)
time.sleep(60)
"""


@contextmanager
def rank_process(file: int, rank: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that has joined the memory of this process's descriptor `file` as a rank, and does nothing else."""
    command = [sys.executable, "-c", _PROGRAM, f"/proc/{os.getpid()}/fd/{file}", str(rank)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"
        try:
            yield process
        finally:
            process.kill()
