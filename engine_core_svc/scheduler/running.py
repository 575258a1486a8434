"""Running list: the requests that hold blocks, in order of service; the last one is the first to be preempted."""

import bisect
from collections.abc import Callable, Iterator

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.policy import OrderKey


class RunningList:
    """Requests sorted by a key that does not change while they are in it.

    Args:
        key: sort key; smaller keys are served first.

    Attributes:
        in_order: the requests themselves, for fast access by index; not changed by others.
    """

    def __init__(self, key: Callable[[Request], OrderKey]) -> None:
        self._key = key
        self.in_order: list[Request] = []

    def __len__(self) -> int:
        return len(self.in_order)

    def __getitem__(self, index: int) -> Request:
        return self.in_order[index]

    def __reversed__(self) -> Iterator[Request]:
        """Iterate from the last in order to the first."""
        return reversed(self.in_order)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.in_order)

    def add(self, request: Request) -> None:
        """Insert a request at its place in the order."""
        bisect.insort(self.in_order, request, key=self._key)

    def remove(self, request: Request) -> None:
        """Remove a request; ValueError if it is not running."""
        index = bisect.bisect_left(self.in_order, self._key(request), key=self._key)
        if index == len(self.in_order) or self.in_order[index] is not request:
            raise ValueError(f"request {request.request_id} is not running")
        del self.in_order[index]
