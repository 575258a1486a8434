"""Recovery: how long tokens stayed away after a fault, from the times at which clients got some.

A few tokens are under way when a service dies and still arrive. So the time to recovery ends with the longest silence that
begins after the fault and before the next one: then tokens flow again. A kill during another fault is not measured.
"""

import statistics
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.schedule import Fault

# How long a fault may be felt behind its end.
_AFTERMATH_S = 1.0
# Times closer together than this say nothing about silences.
_RESOLUTION_S = 0.002


class TokenClock:
    """Remembers when tokens arrived at any client. Called for each piece of each stream."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self) -> None:
        now = time.monotonic()
        if not self.times or now - self.times[-1] >= _RESOLUTION_S:
            self.times.append(now)


@dataclass(frozen=True)
class Struck:
    """A fault and when, on the monotonic clock, it struck."""

    fault: Fault
    at: float

    def is_felt_at(self, moment: float) -> bool:
        """Return whether it goes on, or may still be felt, at a later moment."""
        return self.at <= moment <= self.at + self.fault.lasts_s + _AFTERMATH_S


@dataclass(frozen=True)
class RecoveryTimes:
    """Seconds until tokens flowed again.

    Attributes:
        seconds: of the faults that could be measured.
        num_unmeasured: kills during another fault, or behind which the next fault came first.
    """

    seconds: Sequence[float]
    num_unmeasured: int

    @property
    def median_s(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def max_s(self) -> float:
        """The longest."""
        return max(self.seconds)


def recovery_time_s(times: Sequence[float], start: float, end: float) -> float | None:
    """Return the seconds from `start` to the end of the longest silence that begins before `end`; None if it never ends.

    Args:
        times: when tokens arrived, in order.
        start: of the fault.
        end: when the next fault struck, or the load was ended.
    """
    within = [start, *times[bisect_left(times, start) : bisect_left(times, end)], end]
    silences = [(after - before, after) for before, after in pairwise(within)]
    _, ends_at = max(silences)
    return None if ends_at == end else ends_at - start


def longest_silence(struck: Sequence[Struck], times: Sequence[float]) -> tuple[float, Struck] | None:
    """Return the seconds of the longest silence under faults and the last fault before its end; None if nothing struck."""
    silences = sorted(((after - before, after) for before, after in pairwise(times)), reverse=True)
    for seconds, ends_at in silences:
        if behind := [each for each in struck if ends_at - seconds - _AFTERMATH_S <= each.at <= ends_at]:
            return seconds, behind[-1]
    return None


def recovery_times(struck: Sequence[Struck], times: Sequence[float], end: float) -> Mapping[str, RecoveryTimes]:
    """Return the recovery times after kills, by service."""
    by_time = sorted(struck, key=lambda each: each.at)
    found: dict[str, list[float | None]] = {}
    for place, each in enumerate(by_time):
        if each.fault.kind == "kill":
            next_at = by_time[place + 1].at if place + 1 < len(by_time) else end
            alone = not any(other.is_felt_at(each.at) for other in by_time[:place])
            seconds = recovery_time_s(times, each.at, next_at) if alone else None
            found.setdefault(each.fault.target, []).append(seconds)
    return {
        name: RecoveryTimes([value for value in values if value is not None], values.count(None))
        for name, values in sorted(found.items())
    }
