"""Schedule: which fault strikes whom and when, as a pure function of a seed.

Knows names of services and links, nothing of processes. Faults are dealt from a shuffled deck, so that each kind strikes each
target about as often as any other, however short the run.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Literal

ServiceFault = Literal["kill", "freeze", "drain", "restart"]
LinkFault = Literal["cut", "stall", "slow", "garble"]
FaultKind = ServiceFault | LinkFault

_SHORTEST_S, _LONGEST_S = 1.0, 5.0


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Args:
        at_s: seconds after the start of the faults.
        kind: what happens.
        target: to which service, or which link.
        lasts_s: how long a freeze, a stall or a slow link lasts.
    """

    at_s: float
    kind: FaultKind
    target: str
    lasts_s: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:7.2f} s  {self.kind:<6} {self.target}{lasts}"


@dataclass(frozen=True)
class Deck:
    """What may happen, each as often as it stands here.

    Args:
        cards: kind and target.
        mean_pause_s: seconds between the beginnings of two faults.
    """

    cards: Sequence[tuple[FaultKind, str]]
    mean_pause_s: float

    def deal(self, seed: int, duration_s: float) -> list[Fault]:
        """Return the faults that begin within `duration_s`."""
        return list(takewhile(lambda fault: fault.at_s < duration_s, self._deal(random.Random(seed))))

    def deal_number(self, seed: int, number: int) -> list[Fault]:
        """Return the first `number` faults."""
        return list(islice(self._deal(random.Random(seed)), number))

    def _deal(self, rng: random.Random) -> Iterator[Fault]:
        at_s, cards = 0.0, list[tuple[FaultKind, str]]()
        while True:
            # Some faults come before the last one is healed, some long after.
            at_s += self.mean_pause_s * rng.uniform(0.2, 1.8)
            if not cards:
                cards = rng.sample(self.cards, len(self.cards))
            kind, target = cards.pop()
            lasts = kind in ("freeze", "stall", "slow")
            yield Fault(at_s, kind, target, rng.uniform(_SHORTEST_S, _LONGEST_S) if lasts else 0.0)


def mixed_deck(services: Sequence[str], links: Sequence[str], *, drained: Sequence[str], mean_pause_s: float) -> Deck:
    """Return a deck in which two cards of five are kills.

    Args:
        services: to kill, freeze and restart.
        links: to cut, stall, slow and garble.
        drained: services to end with SIGTERM.
        mean_pause_s: seconds between two faults.
    """
    cards: list[tuple[FaultKind, str]] = [("kill", name) for name in services for _ in range(4)]
    cards += [(kind, name) for name in services for kind in ("freeze", "restart")]
    cards += [("drain", name) for name in drained]
    cards += [(kind, name) for name in links for kind in ("cut", "stall", "slow", "garble")]
    return Deck(cards, mean_pause_s)
