"""Recovery: the time without tokens after a fault, from the arrival times at the clients.

Two times are reported for each kill: until tokens flow again for all clients together (the service's), and the longest pause
in any open stream (its client's). A few tokens are in flight when a service dies and still arrive, so either may begin a
little later. A kill during another fault is not measured.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.schedule import Fault

# How long a fault may be felt behind its end.
_AFTERMATH_S = 1.0
# How long tokens that were under way at a kill may arrive.
_UNDER_WAY_S = 0.5


class TokenClock:
    """Remembers when tokens arrived. Called with the number of a request for each piece of its stream.

    Attributes:
        streams: the times by request, in order; those of a request that was asked again included.
    """

    def __init__(self) -> None:
        self.streams: defaultdict[int, list[float]] = defaultdict(list)

    def __call__(self, number: int) -> None:
        self.streams[number].append(time.monotonic())

    def all_times(self) -> Sequence[float]:
        """Return the times of all requests, in order."""
        return sorted(moment for stream in self.streams.values() for moment in stream)


@dataclass(frozen=True)
class Struck:
    """A fault and when, on the monotonic clock, it struck."""

    fault: Fault
    at: float

    def is_felt_at(self, moment: float) -> bool:
        """Return whether it goes on, or may still be felt, at a later moment."""
        return self.at <= moment <= self.at + self.fault.lasts_s + _AFTERMATH_S


@dataclass(frozen=True)
class Recovery:
    """From one kill, in seconds.

    Attributes:
        again_s: until tokens flowed again at any client.
        pause_s: the longest pause of a stream.
    """

    again_s: float
    pause_s: float


@dataclass(frozen=True)
class RecoveryTimes:
    """From the kills of one service.

    Attributes:
        measured: the kills that could be measured.
        num_unmeasured: kills during another fault, or behind which the next fault came first.
    """

    measured: Sequence[Recovery]
    num_unmeasured: int

    @property
    def again_s(self) -> tuple[float, float]:
        """Median and longest."""
        return _median_and_longest([each.again_s for each in self.measured])

    @property
    def pause_s(self) -> tuple[float, float]:
        """Median and longest."""
        return _median_and_longest([each.pause_s for each in self.measured])


def longest_silence(struck: Sequence[Struck], clock: TokenClock) -> tuple[float, Struck] | None:
    """Return the seconds of the longest time without any token under faults, and the last fault before its end, or None."""
    silences = sorted(((after - before, after) for before, after in pairwise(clock.all_times())), reverse=True)
    for seconds, ends_at in silences:
        if behind := [each for each in struck if ends_at - seconds - _AFTERMATH_S <= each.at <= ends_at]:
            return seconds, behind[-1]
    return None


def recovery_times(struck: Sequence[Struck], clock: TokenClock, end: float) -> Mapping[str, RecoveryTimes]:
    """Return the recovery times after kills, by service.

    Args:
        struck: all faults.
        clock: of all streams.
        end: when the load was ended.
    """
    by_time = sorted(struck, key=lambda each: each.at)
    silences = list(pairwise(clock.all_times()))
    found: dict[str, list[Recovery | None]] = {}
    for place, each in enumerate(by_time):
        if each.fault.kind == "kill":
            next_at = by_time[place + 1].at if place + 1 < len(by_time) else end
            alone = not any(other.is_felt_at(each.at) for other in by_time[:place])
            recovery = _recovery(clock, silences, each.at, next_at) if alone else None
            found.setdefault(each.fault.target, []).append(recovery)
    return {
        name: RecoveryTimes([value for value in values if value is not None], values.count(None))
        for name, values in sorted(found.items())
    }


def _recovery(clock: TokenClock, silences: Sequence[tuple[float, float]], killed_at: float, next_at: float) -> Recovery | None:
    """Return the times from a kill; None if no stream was open or one still paused at the next fault."""
    pauses = [
        pause
        for times in clock.streams.values()
        if times[0] < killed_at < times[-1]
        for pause in pairwise(times)
        if _is_felt(pause, killed_at)
    ]
    if not pauses or any(before < next_at <= after for before, after in pauses):
        return None
    _, again_at = max((silence for silence in silences if _is_felt(silence, killed_at)), key=_length)
    return Recovery(again_at - killed_at, max(_length(pause) for pause in pauses))


def _is_felt(pause: tuple[float, float], killed_at: float) -> bool:
    before, after = pause
    return before < killed_at + _UNDER_WAY_S and after > killed_at


def _length(pause: tuple[float, float]) -> float:
    before, after = pause
    return after - before


def _median_and_longest(seconds: Sequence[float]) -> tuple[float, float]:
    return statistics.median(seconds), max(seconds)
