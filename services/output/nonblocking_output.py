"""Non-blocking output: makes stderr and stdout of this process accept every write at once, even without a reader.

Called first by every service and by the commands that supervise services: a stopped terminal (Ctrl-S) or a full pipe would stop
their event loops. Text that fits is written at once. The rest waits in a backlog of limited size, which a thread writes when
there is room. Lines beyond the limit, and lines that cannot be written (a full disk, a closed pipe), are dropped and counted.
The end of the process waits at most half a second for the backlog.
"""

import atexit
import contextlib
import io
import os
import select
import stat
import sys
import threading
from collections.abc import Callable

_MAX_BACKLOG_BYTES = 1 << 20
_EXIT_TIMEOUT_S = 0.5

OnDropped = Callable[[int], None]
"""Takes the number of dropped lines, once writing works again; called from another thread."""


def use_nonblocking_output(*names: str, on_dropped: OnDropped) -> None:
    """Replace these streams of `sys` ("stderr", "stdout"). A stream that the program has replaced stays as it is.

    Their descriptors become non-blocking, too, as far as the system allows it: native code and the tracebacks of crashes write
    to them.
    """
    for name in names:
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue
        stream.flush()
        _stop_blocking(stream.fileno())
        output = NonBlockingOutput(stream.fileno(), on_dropped)
        setattr(sys, name, io.TextIOWrapper(output, encoding="utf-8", errors="backslashreplace", line_buffering=True))
        atexit.register(output.wait_written, _EXIT_TIMEOUT_S)


class NonBlockingOutput(io.BufferedIOBase):
    """Writes to a descriptor, which it never closes. Any thread may write.

    Args:
        fd: the descriptor. If it blocks (no O_NONBLOCK), a write may still wait, since another process may fill a pipe after
            this one has found room in it.
        on_dropped: called when lines were dropped.
        max_backlog_bytes: maximum size of the backlog.
    """

    def __init__(self, fd: int, on_dropped: OnDropped, *, max_backlog_bytes: int = _MAX_BACKLOG_BYTES) -> None:
        self._fd = fd
        self._on_dropped = on_dropped
        self._max_backlog_bytes = max_backlog_bytes
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)
        # Guards the fields below. Reentrant, since a finalizer may log during a write.
        self._lock = threading.RLock()
        self._backlog = bytearray()
        self._num_dropped = 0
        self._writer: threading.Thread | None = None

    def write(self, text: bytes, /) -> int:  # type: ignore[override] # a text stream writes only bytes
        """Write the bytes that fit; keep or drop the rest. Return the number of all bytes."""
        with self._lock:
            if self._writer is not None:
                self._keep(text)
            else:
                self._write_at_once(text)
        return len(text)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._fd)

    def wait_written(self, timeout_s: float) -> None:
        """Wait until the backlog is written, at most `timeout_s` seconds."""
        writer = self._writer
        if writer is not None:
            writer.join(timeout_s)

    def _write_at_once(self, text: bytes) -> None:
        rest = text
        try:
            while rest and (written := self._write_some(rest, wait=False)):
                rest = rest[written:]
        except OSError:
            self._num_dropped += _num_lines(rest)
            return
        self._backlog += rest
        if rest or self._num_dropped:
            self._start_writer()

    def _start_writer(self) -> None:
        self._writer = threading.Thread(target=self._write_backlog, name="output", daemon=True)
        try:
            self._writer.start()
        except RuntimeError:  # at a limit of threads, or while the interpreter ends
            self._drop_backlog()

    def _keep(self, text: bytes) -> None:
        if len(self._backlog) + len(text) > self._max_backlog_bytes:
            self._num_dropped += _num_lines(text)
        else:
            self._backlog += text

    def _write_backlog(self) -> None:
        """Write the backlog, on the thread. A backlog that cannot be written is dropped."""
        try:
            while chunk := self._next_chunk():
                written = self._write_some(chunk, wait=True)
                with self._lock:
                    del self._backlog[:written]
        except OSError:
            self._drop_backlog()
            return
        with self._lock:
            num_dropped, self._num_dropped = self._num_dropped, 0
        if num_dropped:
            self._on_dropped(num_dropped)

    def _drop_backlog(self) -> None:
        with self._lock:
            self._num_dropped += _num_lines(self._backlog)
            self._backlog.clear()
            self._writer = None

    def _next_chunk(self) -> bytes:
        with self._lock:
            if not self._backlog:
                self._writer = None
            return bytes(self._backlog[: select.PIPE_BUF])

    def _write_some(self, text: bytes, *, wait: bool) -> int:
        """Return the number of bytes written. A pipe with any room has room for PIPE_BUF bytes."""
        if not self._room.poll(None if wait else 0):
            return 0
        try:
            return os.write(self._fd, text[: select.PIPE_BUF])
        except BlockingIOError:
            return 0


def _num_lines(text: bytes | bytearray) -> int:
    return text.count(b"\n") or bool(text)


def _stop_blocking(fd: int) -> None:
    """Make a descriptor non-blocking without a change for other processes that write to the same pipe or terminal."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):  # cannot be opened again; a socket as stdout belongs to this process only
        os.set_blocking(fd, False)
    elif stat.S_ISFIFO(mode) or os.isatty(fd):
        # Opened again, it has its own flags. If that fails, as for another user's terminal, the descriptor stays as it is.
        with contextlib.suppress(OSError):
            own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.dup2(own, fd)
            os.close(own)
