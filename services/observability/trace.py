"""Trace: records the begin and end of a process's calls in a file for Perfetto and chrome://tracing.

It is off by default: then no call is wrapped. When on, the calls listed in the service's trace_points.py are wrapped while the
service runs, or between two profiling calls (profiling.py); the last spans are kept and written at the end. All times are from
CLOCK_MONOTONIC, which the processes of one machine share. Knows no service; any thread may be traced.
"""

import contextlib
import functools
import gc
import inspect
import itertools
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tetrad.services.log import get_logger

log = get_logger()

_CAPACITY = 100_000
"""Maximum number of kept spans; few enough to be written in the time that a service has to end."""


@dataclass(frozen=True, slots=True)
class Point:
    """A function whose calls are traced, one span each.

    Args:
        owner: the class or module that has the function as an attribute.
        attribute: name of the function there. A coroutine's span is on its own track, since others run while it waits.
        name: name of the span.
    """

    owner: Any
    attribute: str
    name: str


@dataclass(frozen=True, slots=True)
class Interval:
    """A span from one call to another of the same step: both have an argument with a `step_id`.

    Args:
        begin, end: owner and attribute of the two functions, as in Point.
        name: name of the span.
    """

    begin: tuple[Any, str]
    end: tuple[Any, str]
    name: str


Points = Sequence[Point | Interval]


@dataclass(frozen=True, slots=True)
class Span:
    """One traced call. Times are in nanoseconds; `lane` is a thread's id, or None for a track beside the threads."""

    name: str
    start_ns: int
    end_ns: int
    lane: int | None
    step_id: int | None


class Recorder:
    """The last spans of this process.

    Args:
        process: name of the service.
        capacity: maximum number of kept spans.
    """

    def __init__(self, process: str, capacity: int = _CAPACITY) -> None:
        self._process = process
        self._spans: deque[Span] = deque(maxlen=capacity)
        self._threads: dict[int, str] = {}
        self._collection_began_ns = 0
        self._num_noted = 0

    def wrap(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function that calls `call` and records the span; a call that raises is not recorded."""
        if inspect.iscoroutinefunction(call):

            @functools.wraps(call)
            async def traced_coroutine(*args: Any, **kwargs: Any) -> Any:
                start_ns = time.monotonic_ns()
                result = await call(*args, **kwargs)
                self._note(name, start_ns, None, _step_id_of(*args, result))
                return result

            return traced_coroutine

        @functools.wraps(call)
        def traced(*args: Any, **kwargs: Any) -> Any:
            start_ns = time.monotonic_ns()
            result = call(*args, **kwargs)
            self._note(name, start_ns, self._lane(), _step_id_of(*args, result))
            return result

        return traced

    def wrap_pair(
        self, begin: Callable[..., Any], end: Callable[..., Any], name: str
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return two functions that call `begin` and `end`, and record the span between them."""
        started: dict[int | None, int] = {}

        @functools.wraps(begin)
        def traced_begin(*args: Any, **kwargs: Any) -> Any:
            started[_step_id_of(*args)] = time.monotonic_ns()
            return begin(*args, **kwargs)

        @functools.wraps(end)
        def traced_end(*args: Any, **kwargs: Any) -> Any:
            step_id = _step_id_of(*args)
            if (start_ns := started.pop(step_id, None)) is not None:
                self._note(name, start_ns, None, step_id)
            return end(*args, **kwargs)

        return traced_begin, traced_end

    def note_collection(self, phase: str, info: dict[str, int]) -> None:
        """Record one of Python's garbage collections, which stop all threads; for gc.callbacks."""
        if phase == "start":
            self._collection_began_ns = time.monotonic_ns()
        else:
            self._note(f"garbage collection {info['generation']}", self._collection_began_ns, self._lane(), None)

    def write(self, path: Path) -> None:
        """Write the kept spans in Chrome's trace event format, completely or not at all (OSError); times in microseconds.

        `otherData.dropped` is the number of spans that were not kept; they were older than the kept ones.
        """
        spans = list(self._spans)  # other threads may still record running calls
        lines = itertools.chain(self._names(), *(self._events(number, span) for number, span in enumerate(spans)))
        draft = path.with_name(f"{path.name}.draft")
        dropped = self._num_noted - len(spans)
        events = ",\n".join(lines)
        try:
            draft.write_text(f'{{"otherData": {{"dropped": {dropped}}}, "traceEvents": [\n{events}\n]}}\n', "utf-8")
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def _note(self, name: str, start_ns: int, lane: int | None, step_id: int | None) -> None:
        self._num_noted += 1
        self._spans.append(Span(name, start_ns, time.monotonic_ns(), lane, step_id))

    def _lane(self) -> int:
        lane = threading.get_native_id()
        if lane not in self._threads:
            self._threads[lane] = threading.current_thread().name
        return lane

    def _names(self) -> Iterator[str]:
        pid = os.getpid()
        yield json.dumps({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": self._process}})
        for lane, name in list(self._threads.items()):
            yield json.dumps({"ph": "M", "name": "thread_name", "pid": pid, "tid": lane, "args": {"name": name}})

    def _events(self, number: int, span: Span) -> Iterator[str]:
        # Formatted without json.dumps, which takes ten times as long; names need no escapes.
        pid = os.getpid()
        step = "{}" if span.step_id is None else f'{{"step": {span.step_id}}}'
        start, end = span.start_ns / 1000, span.end_ns / 1000
        head = f'"name": "{span.name}", "pid": {pid}, "args": {step}'
        if span.lane is not None:
            yield f'{{"ph": "X", "ts": {start:.3f}, "dur": {end - start:.3f}, "tid": {span.lane}, {head}}}'
            return
        for phase, at in (("b", start), ("e", end)):
            yield f'{{"ph": "{phase}", "ts": {at:.3f}, "tid": {pid}, "cat": "wait", "id": {number}, {head}}}'


@contextlib.contextmanager
def tracing(process: str, path: Path | None, find_points: Callable[[], Points]) -> Iterator[None]:
    """Trace this process while the context is open, and write the file at its end; do nothing if `path` is None.

    A file that cannot be written is logged: the service has done its work.

    Args:
        process: the service's name.
        path: path of the file.
        find_points: returns the calls to trace; called only with a path, since it may import further modules.
    """
    if path is None:
        yield
        return
    recording = Recording(process, find_points())
    try:
        yield
    finally:
        try:
            recording.end(path)
        except OSError as error:
            log.error("trace.not_written", file=str(path), reason=error.strerror or str(error))


class Recording:
    """A trace that is recorded from its construction until `end`.

    Args:
        process: the service's name.
        points: the calls to trace.
    """

    def __init__(self, process: str, points: Points) -> None:
        self._recorder = recorder = Recorder(process)
        self._installed = contextlib.ExitStack()
        for point in points:
            _install(recorder, point, self._installed)
        gc.callbacks.append(recorder.note_collection)
        self._installed.callback(gc.callbacks.remove, recorder.note_collection)

    def end(self, path: Path) -> None:
        """Stop tracing and write the trace; OSError if that fails."""
        self._installed.close()
        self._recorder.write(path)


def _install(recorder: Recorder, point: Point | Interval, stack: contextlib.ExitStack) -> None:
    if isinstance(point, Point):
        call = getattr(point.owner, point.attribute)
        _replace(point.owner, point.attribute, recorder.wrap(call, point.name), stack)
        return
    (begin_owner, begin_name), (end_owner, end_name) = point.begin, point.end
    begin, end = recorder.wrap_pair(getattr(begin_owner, begin_name), getattr(end_owner, end_name), point.name)
    _replace(begin_owner, begin_name, begin, stack)
    _replace(end_owner, end_name, end, stack)


def _replace(owner: Any, attribute: str, call: Callable[..., Any], stack: contextlib.ExitStack) -> None:
    if attribute in vars(owner):
        stack.callback(setattr, owner, attribute, vars(owner)[attribute])
    else:  # inherited
        stack.callback(delattr, owner, attribute)
    setattr(owner, attribute, call)


def _step_id_of(*values: Any) -> int | None:
    for value in values:
        step_id = getattr(value, "step_id", None)
        if isinstance(step_id, int):
            return step_id
    return None
