"""Kinds of faults: their names, targets, durations, and requirements of the machine.

Knows no process: faults.py injects them. docs/recovery.md describes them.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from tests.chaos.machine import Need

Hits = Literal["service", "drained", "pair", "stack", "link", "tcp link"]
"""What a kind may hit: each service, each that may drain, two services at once, the whole stack, each link, each TCP link."""

Duration = Callable[[random.Random], float]

STACK = "stack"
"""The target of what hits the whole stack, or its supervisor."""


def _between(shortest_s: float, longest_s: float) -> Duration:
    return lambda rng: rng.uniform(shortest_s, longest_s)


def _one_of(*seconds: float) -> Duration:
    return lambda rng: rng.choice(seconds)


def _no_time(rng: random.Random) -> float:
    return 0.0


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Args:
        name: as on the command line.
        hits: its possible targets.
        lasts_s: how long one lasts, drawn for each.
        weight: how many cards of the deck it has for each target.
        alone: no other fault is in effect while it lasts.
        is_long: another long one is not in effect while it lasts: together they would outlast what a request may take.
        needs: what the machine must have.
    """

    name: str
    hits: Hits
    lasts_s: Duration = _no_time
    weight: int = 1
    alone: bool = False
    is_long: bool = False
    needs: Need | None = None


_SHORT = _between(1.0, 5.0)
_LONG = _one_of(30.0, 50.0, 70.0, 120.0)
_PARTITION = _between(5.0, 30.0)

ALL: tuple[Kind, ...] = (
    Kind("kill", "service", weight=4),
    Kind("freeze", "service", _SHORT),
    Kind("freeze-long", "service", _LONG, is_long=True),
    Kind("freeze-two", "pair", _one_of(30.0, 50.0, 70.0), is_long=True),
    Kind("freeze-stack", STACK, _LONG, alone=True, is_long=True),
    Kind("freeze-supervisor", STACK, _between(5.0, 30.0), is_long=True),
    Kind("drain", "drained"),
    Kind("restart", "service"),
    Kind("burst", "service", _between(0.5, 3.0)),
    Kind("block-stderr", STACK, _between(5.0, 10.0), alone=True, is_long=True),
    Kind("clock", "service", _between(1.0, 20.0), needs="preload"),
    Kind("disk-full", "service", _SHORT, needs="preload"),
    Kind("disk-error", "service", _SHORT, needs="preload"),
    Kind("memory", "service", _between(2.0, 6.0), needs="memory cgroup"),
    Kind("descriptors", "service", _SHORT),
    Kind("cut", "link"),
    Kind("stall", "link", _SHORT),
    Kind("stall-there", "link", _SHORT),
    Kind("stall-back", "link", _SHORT),
    Kind("slow", "link", _SHORT),
    Kind("garble", "link"),
    Kind("partition", "link", _PARTITION, is_long=True),
    Kind("partition-there", "link", _PARTITION, is_long=True),
    Kind("partition-back", "link", _PARTITION, is_long=True),
    Kind("loss", "tcp link", _between(5.0, 15.0), needs="tun", weight=2),
    Kind("reorder", "tcp link", _between(5.0, 15.0), needs="tun", weight=2),
)

BY_NAME = {kind.name: kind for kind in ALL}


def named(names: Iterable[str]) -> tuple[Kind, ...]:
    """Return kinds by their names; ValueError if there is no such kind."""
    wanted = tuple(names)
    if unknown := [name for name in wanted if name not in BY_NAME]:
        raise ValueError(f"There is no kind of fault {unknown[0]!r}; there are {', '.join(BY_NAME)}.")
    return tuple(BY_NAME[name] for name in wanted)
