"""Schedule: the kind, target and time of each fault, as a pure function of a seed.

Knows names of services and links, nothing of processes. Faults are dealt from a shuffled deck, so that each kind meets each
target about as often as any other, even in a short run.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, takewhile
from typing import Generic, TypeVar

from tests.chaos.kinds import BY_NAME, STACK, Hits, Kind

T = TypeVar("T")

PAIR = "+"
"""Between the two names of a target that is a pair of services."""

# Behind a fault that strikes alone, and before it: so long may others be felt.
_SETTLE_S = 5.0
# Between two long faults: requests that waited for the first one are answered.
_CALM_S = 10.0


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Args:
        at_s: seconds after the start of the faults.
        kind: name of what happens (kinds.py).
        target: to which service, link or pair of services, or to the stack.
        lasts_s: how long it lasts, where it does.
    """

    at_s: float
    kind: str
    target: str
    lasts_s: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:7.2f} s  {self.kind:<17} {self.target}{lasts}"

    @property
    def ends_s(self) -> float:
        """When it ends, on the same clock as `at_s`."""
        return self.at_s + self.lasts_s


@dataclass(frozen=True)
class Targets:
    """What a run may hit.

    Args:
        services: all of them.
        drained: those that may be ended with SIGTERM.
        links: all of them.
        tcp_links: those whose packets can be lost.
    """

    services: Sequence[str]
    drained: Sequence[str]
    links: Sequence[str]
    tcp_links: Sequence[str] = ()

    def of(self, hits: Hits) -> Sequence[str]:
        """Return the targets of one sort."""
        pairs = [PAIR.join(pair) for pair in combinations(self.services, 2)]
        every: dict[Hits, Sequence[str]] = {
            "service": self.services,
            "drained": self.drained,
            "pair": pairs,
            "stack": (STACK,),
            "link": self.links,
            "tcp link": self.tcp_links,
        }
        return every[hits]


@dataclass(frozen=True)
class Deck:
    """What may happen, each as often as it stands here.

    Args:
        cards: kind and target.
        mean_pause_s: seconds between the beginnings of two faults.
    """

    cards: Sequence[tuple[str, str]]
    mean_pause_s: float

    def deal(self, seed: int, duration_s: float) -> list[Fault]:
        """Return the faults that begin within `duration_s`."""
        return list(takewhile(lambda fault: fault.at_s < duration_s, self._deal(random.Random(seed))))

    def deal_number(self, seed: int, number: int) -> list[Fault]:
        """Return the first `number` faults."""
        return list(islice(self._deal(random.Random(seed)), number))

    def _deal(self, rng: random.Random) -> Iterator[Fault]:
        shorts = _Pile([card for card in self.cards if not BY_NAME[card[0]].is_long], rng)
        # Few long ones fit into a run: each kind shall come, whatever the number of its targets.
        by_kind = {name: [card for card in self.cards if card[0] == name] for name, _ in self.cards if BY_NAME[name].is_long}
        longs = _Pile([_Pile(cards, rng) for cards in by_kind.values()], rng)
        at_s = all_end_s = 0.0
        next_long_s = 0.0 if longs else float("inf")
        while True:
            # Some faults come before the last one is healed, some long after.
            at_s += self.mean_pause_s * rng.uniform(0.2, 1.8)
            if not shorts:
                at_s = max(at_s, next_long_s)
            name, target = longs.draw().draw() if at_s >= next_long_s else shorts.draw()
            kind = BY_NAME[name]
            if kind.alone:
                at_s = max(at_s, all_end_s + _SETTLE_S)
            fault = Fault(at_s, name, target, kind.lasts_s(rng))
            all_end_s = max(all_end_s, fault.ends_s)
            if kind.is_long:
                next_long_s = fault.ends_s + _CALM_S
            if kind.alone:
                at_s = fault.ends_s + _SETTLE_S
            yield fault


class _Pile(Generic[T]):
    """Things that are drawn without end: all of them in a random order, then all in another."""

    def __init__(self, things: Sequence[T], rng: random.Random) -> None:
        self._things, self._rng = things, rng
        self._left: list[T] = []

    def __len__(self) -> int:
        return len(self._things)

    def draw(self) -> T:
        if not self._left:
            self._left = self._rng.sample(self._things, len(self._things))
        return self._left.pop()


def deck(kinds: Sequence[Kind], targets: Targets, *, mean_pause_s: float) -> Deck:
    """Return the deck of these kinds: a kill has four cards for each service, most others one for each target."""
    cards = [(kind.name, target) for kind in kinds for target in _some(kind, targets.of(kind.hits)) for _ in range(kind.weight)]
    return Deck(cards, mean_pause_s)


def _some(kind: Kind, targets: Sequence[str]) -> Sequence[str]:
    """Return the targets that get a card: of the many pairs of services each second one, which names every service."""
    return targets[::-2] if kind.hits == "pair" else targets
