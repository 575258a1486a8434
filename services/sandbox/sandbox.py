"""Sandbox: the parent's side of a process that runs untrusted programs, which may loop, exhaust memory or crash.

Used by one thread, which waits for the answers; another thread may call `interrupt`. The process is started on first use,
killed when an exchange takes too long, and started again by the next exchange. process.py is the child's side.
"""

import math
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tetrad.services.errors import InternalError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.sandbox.process import HEADER, frame

_START_TIMEOUT_S = 60.0
# Seconds after its time limit at which the process ends itself, in case its parent has ended and cannot kill it.
_ORPHAN_GRACE_S = 5
_MAX_READ_BYTES = 1 << 20
# numpy's library takes 40 MB of address space for each core, which would leave less of the limit on larger machines.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}

log = get_logger()


class SandboxTimeout(Exception):
    """The process did not answer in time and was killed."""


class SandboxDied(Exception):
    """The process ended instead of answering, for example for lack of memory."""


class Sandbox:
    """Runs at most one process at a time.

    Args:
        module: name of the module that runs in it and calls `serve_frames`.
        memory_bytes: maximum address space of the process.
        timeout_s: maximum seconds of one exchange.
        hello: returns the first message to the process.
    """

    def __init__(self, module: str, *, memory_bytes: int, timeout_s: float, hello: Callable[[], bytes] = bytes) -> None:
        self._module = module
        self._memory_bytes = memory_bytes
        self._timeout_s = timeout_s
        self._hello = hello
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the process if there is none, or if it has ended. Raises InternalError if it does not start."""
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()  # a process that was killed between two questions: the next question is not the reason
        if self._closed.is_set():
            raise _stopping()
        alarm_s = math.ceil(self._timeout_s) + _ORPHAN_GRACE_S
        command = [sys.executable, "-m", self._module, str(self._memory_bytes), str(alarm_s)]
        environment = {**os.environ, **_ENVIRONMENT}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        if self._closed.is_set():  # interrupted before there was a process to kill
            self._stop()
            raise _stopping()
        try:
            self._exchange(self._process, self._hello(), _START_TIMEOUT_S)
        except (SandboxTimeout, SandboxDied) as error:
            raise InternalError(f"The process {self._module} does not start.") from error

    def exchange(self, contents: bytes) -> bytes:
        """Return the process's answer.

        Raises:
            SandboxTimeout, SandboxDied: there is no answer; the process has ended.
            InternalError: the process cannot be started.
            Unavailable: the sandbox was interrupted or closed.
        """
        self.start()
        assert self._process is not None
        return self._exchange(self._process, contents, self._timeout_s)

    def interrupt(self) -> None:
        """Make the present exchange, and every later one, fail."""
        self._closed.set()
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process, if there is one; no other is started."""
        self._closed.set()
        self._stop()

    def _exchange(self, process: subprocess.Popen[bytes], contents: bytes, timeout_s: float) -> bytes:
        patience = _Patience(timeout_s)
        try:
            _write(process, contents, patience)
            [length] = HEADER.unpack(_read(process, HEADER.size, patience))
            return _read(process, length, patience)
        except (SandboxTimeout, SandboxDied) as error:
            self._stop()
            if self._closed.is_set():
                raise _stopping() from None
            log.warning("sandbox.killed", module=self._module, reason=type(error).__name__)
            raise

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _stopping() -> Unavailable:
    return Unavailable("This service is stopping.", reason="DRAINING")


def _write(process: subprocess.Popen[bytes], contents: bytes, patience: "_Patience") -> None:
    """Send a frame. A stopped process reads nothing, so a frame that is larger than the pipe waits for it."""
    assert process.stdin is not None
    fd = process.stdin.fileno()
    os.set_blocking(fd, False)
    left = memoryview(frame(contents))
    while left:
        patience.wait(fd, select.POLLOUT)
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:  # less room than the system writes at once
            continue
        except BrokenPipeError as error:
            raise SandboxDied from error


class _Patience:
    """The time left for an exchange. If either process is stopped and continued, that counts as at most a fifth of the time.

    Args:
        timeout_s: the whole time of the exchange, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._left_s = timeout_s
        self._slice_s = timeout_s / 10

    def wait(self, fd: int, event: int) -> None:
        """Wait until the descriptor is readable (POLLIN) or writable (POLLOUT). Raises SandboxTimeout if the time is over."""
        watch = select.poll()  # select.select fails for descriptors from 1024 on
        watch.register(fd, event)
        while self._left_s > 0:
            began = time.monotonic()
            ready = watch.poll(math.ceil(1000 * min(self._slice_s, self._left_s)))
            self._left_s -= min(time.monotonic() - began, 2 * self._slice_s)
            if ready:
                return
        raise SandboxTimeout


def _read(process: subprocess.Popen[bytes], size: int, patience: _Patience) -> bytes:
    assert process.stdout is not None
    fd = process.stdout.fileno()
    chunks = []
    while size:
        patience.wait(fd, select.POLLIN)
        chunk = os.read(fd, min(size, _MAX_READ_BYTES))
        if not chunk:
            raise SandboxDied
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
