"""Block samples: how long some of the KV blocks keep their contents, and how they are used (--kv-cache-metrics).

Called by the block pool. A block's life begins when it is allocated and ends when it is allocated again. As in vLLM, a share of
the lives is observed, chosen at random; an access is a request's use of contents that the prefix cache has.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_MAX_ACCESSES = 4
"""Accesses that are remembered of a block, the last ones."""


@dataclass(slots=True)
class _Life:
    began: float
    accesses: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_ACCESSES))


@dataclass(frozen=True, slots=True)
class BlockObservers:
    """Take seconds of a block whose life has ended.

    Attributes:
        lifetime: from its allocation to the next one.
        idle: since its last access, or since its allocation if there was none.
        reuse_gap: between two accesses, for each of the last ones.
    """

    lifetime: Callable[[float], None]
    idle: Callable[[float], None]
    reuse_gap: Callable[[float], None]


class BlockSamples:
    """Observes a share of the blocks.

    Args:
        share: share of the allocations whose blocks are observed, above 0 and at most 1.
        observers: take what is observed.
        now: the clock, in seconds.
    """

    def __init__(self, share: float, observers: BlockObservers, now: Callable[[], float] = time.monotonic) -> None:
        self._share, self._observers, self._now = share, observers, now
        self._draw = random.Random().random
        self._lives: dict[int, _Life] = {}  # by block

    def note_allocated(self, blocks: Sequence[int]) -> None:
        """Observe the lives that end, and choose among those that begin."""
        now = self._now()
        for block in blocks:
            life = self._lives.pop(block, None)
            if life is not None:
                self._observe(life, now)
            if self._draw() < self._share:
                self._lives[block] = _Life(now)

    def note_touched(self, blocks: Iterable[int]) -> None:
        """Remember the time of an access to those that are observed."""
        now = self._now()
        for block in blocks:
            if (life := self._lives.get(block)) is not None:
                life.accesses.append(now)

    def forget_all(self) -> None:
        """Forget all lives, unobserved."""
        self._lives.clear()

    def _observe(self, life: _Life, now: float) -> None:
        self._observers.lifetime(now - life.began)
        self._observers.idle(now - (life.accesses[-1] if life.accesses else life.began))
        for before, after in pairwise(life.accesses):
            self._observers.reuse_gap(after - before)
