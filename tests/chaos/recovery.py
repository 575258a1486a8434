"""Recovery: how long tokens stayed away after a fault, from the times at which clients got some.

What counts is what a client sees: the longest pause in a stream that was open at the kill, whether one service or all of them
went quiet. A few tokens are under way when a service dies and still arrive, so the pause may begin a little later. A kill
during another fault is not measured.
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
    """Seconds of the longest pause that a client saw.

    Attributes:
        seconds: by kill that could be measured.
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


def longest_silence(struck: Sequence[Struck], clock: TokenClock) -> tuple[float, Struck] | None:
    """Return the seconds of the longest time without any token under faults, and the last fault before its end, or None."""
    times = sorted(moment for stream in clock.streams.values() for moment in stream)
    silences = sorted(((after - before, after) for before, after in pairwise(times)), reverse=True)
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
    found: dict[str, list[float | None]] = {}
    for place, each in enumerate(by_time):
        if each.fault.kind == "kill":
            next_at = by_time[place + 1].at if place + 1 < len(by_time) else end
            alone = not any(other.is_felt_at(each.at) for other in by_time[:place])
            seconds = _longest_pause_s(clock, each.at, next_at) if alone else None
            found.setdefault(each.fault.target, []).append(seconds)
    return {
        name: RecoveryTimes([value for value in values if value is not None], values.count(None))
        for name, values in sorted(found.items())
    }


def _longest_pause_s(clock: TokenClock, killed_at: float, next_at: float) -> float | None:
    """Return the longest pause of the streams open at a kill; None if there was none or one went on at the next fault."""
    pauses = [
        (before, after)
        for times in clock.streams.values()
        if times[0] < killed_at < times[-1]
        for before, after in pairwise(times)
        if before < killed_at + _UNDER_WAY_S and after > killed_at
    ]
    if not pauses or any(before < next_at <= after for before, after in pauses):
        return None
    return max(after - before for before, after in pauses)
