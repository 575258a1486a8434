"""Policy: the order in which requests are served, and the queue that keeps it.

One key orders everything: who waits first, who runs first in a step, and (from the other end) who is preempted. So a preempted
request is back at its old place among equals without further bookkeeping.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Literal

from tetrad.engine_core_svc.core.request import Request

PolicyName = Literal["fcfs", "priority"]
OrderKey = tuple[int, float, int]


def fcfs_key(request: Request) -> OrderKey:
    """First come, first served."""
    return (0, 0.0, request.sequence_number)


def priority_key(request: Request) -> OrderKey:
    """Larger priority first; among equals the earlier arrival."""
    return (-request.priority, request.arrival_time, request.sequence_number)


ORDER_KEYS: dict[PolicyName, Callable[[Request], OrderKey]] = {"fcfs": fcfs_key, "priority": priority_key}


class RequestSet:
    """Requests that wait, and how many tokens they had when they came."""

    def __init__(self) -> None:
        self._members: dict[int, Request] = {}
        self._sizes: dict[int, int] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """Iterate in no particular order."""
        return iter(self._members.values())

    def add(self, request: Request) -> None:
        """Take a request in."""
        self._members[request.key] = request
        self._sizes[request.key] = request.num_tokens
        self.num_tokens += request.num_tokens

    def remove(self, request: Request) -> None:
        """Take a request out; KeyError if it is not here."""
        del self._members[request.key]
        self.num_tokens -= self._sizes.pop(request.key)


class RequestQueue(RequestSet):
    """Requests in the order of a key. Removal is lazy: a removed request is skipped when it comes up.

    Args:
        key: smaller comes first.

    Attributes:
        only: key of the one request that may be first for now; None: any.
    """

    def __init__(self, key: Callable[[Request], OrderKey]) -> None:
        super().__init__()
        self.only: int | None = None
        self._key = key
        self._heap: list[tuple[OrderKey, int]] = []

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        super().add(request)
        heapq.heappush(self._heap, (self._key(request), request.key))

    def peek(self) -> Request | None:
        """Return the first request without removing it; None if there is none."""
        if self.only is not None:
            return self._members.get(self.only)
        while self._heap:
            request = self._members.get(self._heap[0][1])
            if request is not None:
                return request
            heapq.heappop(self._heap)
        return None
