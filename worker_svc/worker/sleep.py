"""Sleep: the state that a worker needs to restore its weights and KV cache.

Kept by worker.py, on the compute thread. Knows the order in which parts may wake up; moves no memory itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.device import KvLayout

WEIGHTS, KV_CACHE = "weights", "kv_cache"
LEVELS = (1, 2, 3)
"""Levels of sleep. 1: weights are kept in host memory; 2: weights are deleted, and loaded again at wake-up; 3: weights stay on
the device, and the KV cache alone sleeps.
"""


@dataclass(slots=True)
class Sleep:
    """The state of a sleeping worker.

    Attributes:
        level: one of LEVELS.
        layout: the layout of the KV cache before the sleep; None: there was no KV cache.
        has_weights: whether the weights are on the device: they have been restored, or stayed there.
    """

    level: int
    layout: KvLayout | None
    has_weights: bool = False


def check_level(level: int) -> None:
    """Raise InvalidRequest unless the level is one of LEVELS."""
    if level not in LEVELS:
        raise InvalidRequest(f"level must be 1, 2 or 3, got {level}.", field="level")


def parts_to_wake(sleep: Sleep, tags: Iterable[str]) -> frozenset[str]:
    """Return the parts to wake up: WEIGHTS, KV_CACHE, or both if there are no tags.

    Raises InvalidRequest for another tag, or for a KV cache before the weights.
    """
    parts = frozenset(tags) or frozenset((WEIGHTS, KV_CACHE))
    if unknown := parts - {WEIGHTS, KV_CACHE}:
        raise InvalidRequest(f"tags may be {WEIGHTS} and {KV_CACHE}, got {min(unknown)!r}.", field="tags")
    if not sleep.has_weights and WEIGHTS not in parts:
        raise InvalidRequest(f"The weights are asleep: wake {WEIGHTS} up before {KV_CACHE}.", field="tags")
    return parts
