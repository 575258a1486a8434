"""TemplateClient: the parent's side of one template process.

Used by one thread at a time, which waits in it. The process is started when it is first needed, killed when a request takes
too long, and then started again by the next request.
"""

import math
import os
import select
import struct
import subprocess
import sys
import time

from tetrad.services.errors import InternalError
from tetrad.services.log import get_logger
from tetrad.tokenizer_svc.template_process import write_frame

_START_TIMEOUT_S = 30.0
# The process ends itself so long after its time was over, in case nobody is there any more to kill it.
_ORPHAN_GRACE_S = 5

log = get_logger()


class TemplateTimeout(Exception):
    """The request took too long; its process is gone."""


class TemplateProcessDied(Exception):
    """The process ended during the request, as for want of memory."""


class TemplateClient:
    """Owns at most one template process.

    Args:
        memory_bytes: address space that the process may use.
        timeout_s: how long one request may take.
    """

    def __init__(self, *, memory_bytes: int, timeout_s: float) -> None:
        self._memory_bytes = memory_bytes
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if there is none; InternalError if it does not come up."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "tetrad.tokenizer_svc.template_process", str(self._memory_bytes)]
        command.append(str(math.ceil(self._timeout_s) + _ORPHAN_GRACE_S))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._read_frame(time.monotonic() + _START_TIMEOUT_S)
        except (TemplateTimeout, TemplateProcessDied) as error:
            self.stop()
            raise InternalError("The process that renders chat templates does not start.") from error

    def exchange(self, request: bytes) -> bytes:
        """Return the process's answer to a request.

        Raises:
            TemplateTimeout: no answer in time; the process was killed.
            TemplateProcessDied: it ended instead of answering.
        """
        self.start()
        assert self._process is not None and self._process.stdin is not None
        deadline = time.monotonic() + self._timeout_s
        try:
            # Cannot block for long: the process reads a request whole before it works.
            write_frame(self._process.stdin, request)
            return self._read_frame(deadline)
        except BrokenPipeError as error:
            self._give_up(error)
            raise TemplateProcessDied from error
        except (TemplateTimeout, TemplateProcessDied) as error:
            self._give_up(error)
            raise

    def stop(self) -> None:
        """Kill the process, if there is one, and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # what a dead process did not read
                    continue

    def _give_up(self, error: Exception) -> None:
        log.warning("template_process.killed", reason=type(error).__name__)
        self.stop()

    def _read_frame(self, deadline: float) -> bytes:
        [length] = struct.unpack("<I", self._read_exactly(4, deadline))
        return self._read_exactly(length, deadline)

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        fd = self._process.stdout.fileno()
        chunks = []
        while size:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TemplateTimeout
            chunk = os.read(fd, min(size, 1 << 20))
            if not chunk:
                raise TemplateProcessDied
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)
