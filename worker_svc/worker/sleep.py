"""Sleep: the state that a worker needs to restore its weights and KV cache.

Kept by worker.py, on the compute thread. Knows which parts may wake up in which order; moves nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.device import KvLayout

WEIGHTS, KV_CACHE = "weights", "kv_cache"
LEVELS = (1, 2)
"""1: weights are in host memory; 2: they are gone, and will be loaded again."""


@dataclass(slots=True)
class Sleep:
    """A worker that sleeps.

    Attributes:
        level: one of LEVELS.
        layout: of the KV cache that it had; None: it had none.
        has_weights: whether they have been woken up.
    """

    level: int
    layout: KvLayout | None
    has_weights: bool = False


def check_level(level: int) -> None:
    """InvalidRequest for a level that a worker does not have."""
    if level not in LEVELS:
        raise InvalidRequest(f"level must be 1 or 2, got {level}.", field="level")


def parts_to_wake(sleep: Sleep, tags: Iterable[str]) -> frozenset[str]:
    """Return WEIGHTS, KV_CACHE or both, which no tags mean; InvalidRequest for another one or a KV cache before its weights."""
    parts = frozenset(tags) or frozenset((WEIGHTS, KV_CACHE))
    if unknown := parts - {WEIGHTS, KV_CACHE}:
        raise InvalidRequest(f"tags may be {WEIGHTS} and {KV_CACHE}, got {min(unknown)!r}.", field="tags")
    if not sleep.has_weights and WEIGHTS not in parts:
        raise InvalidRequest(f"The weights are asleep: wake {WEIGHTS} up before {KV_CACHE}.", field="tags")
    return parts
