"""StepTrace: merges the services' traces (services/observability/trace.py) into one file, and sums the parts of a step.

Knows Chrome's trace event format, in which the services write spans of threads ("X") and waits outside of threads ("b" and
"e"). All services use the same clock. It knows one span by name: a worker's "execute" is a step.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tetrad.cli.load.summary import percentile_of

_STEP = "execute"

Event = dict[str, Any]


@dataclass
class Part:
    """One kind of span. Times are in microseconds.

    Attributes:
        times: the duration of each span.
        own: total time of all spans without the spans inside them; None: they are waits, which use no thread.
    """

    process: str
    name: str
    times: list[float] = field(default_factory=list)
    own: float | None = None


class StepTrace:
    """The spans of all processes, from the time on at which all traces are complete.

    Args:
        paths: the trace files of the services.
        began_at, ended_at: the time range to read, in seconds of the monotonic clock.
    """

    def __init__(self, paths: Iterable[Path], began_at: float, ended_at: float) -> None:
        files = [json.loads(path.read_text("utf-8")) for path in paths]
        events: list[Event] = [event for file in files for event in file["traceEvents"]]
        self._names = [event for event in events if event["ph"] == "M"]
        begin = max([began_at * 1e6, *(first for file in files if (first := _complete_from(file)) is not None)])
        self._spans = [event for event in events if event["ph"] != "M" and begin <= event["ts"] <= ended_at * 1e6]

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return sum(event["name"] == _STEP for event in self._spans)

    def write(self, path: Path) -> None:
        """Write the spans as one file for Perfetto."""
        lines = ",\n".join(json.dumps(event) for event in (*self._names, *self._spans))
        path.write_text(f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n', "utf-8")

    def parts(self) -> list[Part]:
        """Return all kinds of spans, sorted by process and then by the end of the first span."""
        processes = {event["pid"]: event["args"]["name"] for event in self._names if event["name"] == "process_name"}
        parts: dict[tuple[int, str], Part] = {}
        for event, time in (*_on_threads(self._spans), *_waits(self._spans)):
            key = event["pid"], event["name"]
            part = parts.setdefault(key, Part(processes[event["pid"]], event["name"]))
            part.times.append(event["dur"])
            if time is not None:
                part.own = (part.own or 0.0) + time
        return sorted(parts.values(), key=lambda part: part.process)

    def table(self) -> str:
        """Return the parts as a text table: times in microseconds, those per step summed over the calls of a step."""
        steps = max(self.num_steps, 1)
        lines = [f"{'process':<12}{'part':<24}{'calls/step':>11}{'us/step':>10}{'own us/step':>13}{'median':>9}{'p99':>9}"]
        for part in self.parts():
            ordered = sorted(part.times)
            own = "waits" if part.own is None else f"{part.own / steps:.1f}"
            lines.append(
                f"{part.process:<12}{part.name:<24}{len(ordered) / steps:>11.2f}{sum(ordered) / steps:>10.1f}{own:>13}"
                f"{percentile_of(ordered, 50):>9.1f}{percentile_of(ordered, 99):>9.1f}"
            )
        return "\n".join(lines)


def _complete_from(file: dict[str, Any]) -> float | None:
    """Return the time from which a trace with dropped events is complete; None: no events were dropped."""
    starts = [event["ts"] for event in file["traceEvents"] if event["ph"] != "M"]
    return max(starts[:1]) if file["otherData"]["dropped"] and starts else None


def _on_threads(spans: Sequence[Event]) -> Iterator[tuple[Event, float]]:
    """Yield the spans of threads with their own time, without the spans nested in them."""
    by_thread: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in spans:
        if event["ph"] == "X":
            by_thread[event["pid"], event["tid"]].append(event)
    for events in by_thread.values():
        own = {id(event): event["dur"] for event in events}
        open_spans: list[Event] = []
        for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
            while open_spans and event["ts"] >= open_spans[-1]["ts"] + open_spans[-1]["dur"]:
                open_spans.pop()
            if open_spans:
                own[id(open_spans[-1])] -= event["dur"]
            open_spans.append(event)
        yield from ((event, own[id(event)]) for event in events)


def _waits(spans: Sequence[Event]) -> Iterator[tuple[Event, None]]:
    """Yield the spans of waits, which belong to no thread."""
    begun: dict[tuple[int, int], Event] = {}
    for event in spans:
        if event["ph"] == "b":
            begun[event["pid"], event["id"]] = event
        elif event["ph"] == "e" and (begin := begun.pop((event["pid"], event["id"]), None)) is not None:
            yield {**begin, "dur": event["ts"] - begin["ts"]}, None
