"""Sandbox process: the child's side of a sandbox: resource limits, message frames, and its end when the parent has ended.

A frame is a 4-byte little-endian length and that many bytes, on stdin and stdout. The first frame prepares the process, which
answers with an empty one; each further frame is a question. The process ends when stdin ends. The file imports little, since
the process is started often.
"""

import contextlib
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import IO

from tetrad.services.parent_end import continue_at_parents_end
from tetrad.services.timers.garbage import no_search

HEADER = struct.Struct("<I")

Answer = Callable[[bytes], bytes]


def serve_frames(prepare: Callable[[bytes], Answer]) -> None:
    """Answer frames until stdin ends.

    Args:
        prepare: takes the first frame and returns the function that answers the others. The limits apply to it, too.

    The command line is MEMORY_BYTES ALARM_S: the maximum address space, and the seconds of CPU time after which an answer ends
    the process, in case its parent has ended.
    """
    continue_at_parents_end()
    memory_bytes, alarm_s = (int(argument) for argument in sys.argv[1:3])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:  # a process may only lower its hard limit
        memory_bytes = min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The parent's Ctrl-C reaches the whole process group; this process ends with stdin instead.
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        _serve(prepare, alarm_s)


def frame(contents: bytes) -> bytes:
    """Return contents as one frame."""
    return HEADER.pack(len(contents)) + contents


def _serve(prepare: Callable[[bytes], Answer], alarm_s: int) -> None:
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = _read_frame(source)
    if first is None:
        return
    with no_search():  # searches among the modules that it imports take a tenth of its time
        answer = prepare(first)
    _write_frame(sink, b"")
    while (question := _read_frame(source)) is not None:
        signal.setitimer(signal.ITIMER_PROF, alarm_s)
        reply = answer(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write_frame(sink, reply)


def _read_frame(source: IO[bytes]) -> bytes | None:
    header = source.read(HEADER.size)
    return source.read(*HEADER.unpack(header)) if len(header) == HEADER.size else None


def _write_frame(sink: IO[bytes], contents: bytes) -> None:
    sink.write(frame(contents))
    sink.flush()
