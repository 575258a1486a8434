"""ParkedRequests: the requests that wait for LoRA adapters, by adapter and in the order of their arrival.

Owned by the scheduler's adapters. The adapters stand in line, each at the place of its first request. Knows nothing of places
on the worker. Invariant: an adapter for which no request waits is not listed.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterator

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.policy import PolicyName

ArrivalKey = tuple[int, int]
ORDERS_OF_ARRIVAL: dict[PolicyName, Callable[[Request], ArrivalKey]] = {
    "fcfs": lambda request: (0, request.sequence_number),
    "priority": lambda request: (-request.priority, request.sequence_number),
}
"""The order in which requests wait for adapters, by policy."""

Turn = tuple[float, float]
"""A place in line; smaller is earlier."""
FIRST_TURN: Turn = (-math.inf, -math.inf)
"""The place before all waiting adapters."""
LAST_TURN: Turn = (math.inf, math.inf)
"""The place behind all waiting adapters."""


class ParkedRequests:
    """The waiting requests of one engine. Its length is the number of awaited adapters.

    Args:
        order: sort key of waiting requests.
    """

    def __init__(self, order: Callable[[Request], ArrivalKey]) -> None:
        self._order = order
        self._by_key: dict[int, list[Request]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: int) -> bool:
        """Return whether requests wait for the adapter with this key."""
        return key in self._by_key

    def __iter__(self) -> Iterator[int]:
        """Iterate over the keys of the awaited adapters, in the order in which they were first awaited."""
        return iter(self._by_key)

    def of(self, key: int) -> list[Request]:
        """Return the requests that wait for an adapter, in order."""
        return list(self._by_key.get(key, ()))

    def turn_of(self, key: int) -> Turn:
        """Return an adapter's place in line; LAST_TURN if no request waits for it."""
        waiting = self._by_key.get(key)
        return self._order(waiting[0]) if waiting else LAST_TURN

    def add(self, request: Request) -> None:
        """Let a request wait for its adapter."""
        assert request.adapter is not None
        insort(self._by_key.setdefault(request.adapter.key, []), request, key=self._order)

    def remove(self, request: Request) -> None:
        """Remove a request that waits no more."""
        assert request.adapter is not None
        waiting = self._by_key[request.adapter.key]
        waiting.remove(request)
        if not waiting:
            del self._by_key[request.adapter.key]

    def take(self, key: int) -> list[Request]:
        """Remove and return all requests that wait for an adapter, in order."""
        return self._by_key.pop(key)
