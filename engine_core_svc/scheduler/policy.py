"""Policy: the order in which requests are served, and the queue and the running list that keep it.

The same sort key orders waiting requests, running requests in a step and, in reverse, preemptions. So a preempted request
returns to its old place without further bookkeeping.

The sequences of one call (n outputs, many prompts) take turns with the requests of others: only the first of a call has the
place of its arrival; each further one gets the place behind all arrivals when the one before it is admitted. Calls of one
sequence keep vLLM's order exactly.
"""

import bisect
import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tetrad.engine_core_svc.core.request import CallId, Request

PolicyName = Literal["fcfs", "priority"]
OrderKey = tuple[int, float, int]
_Heap = list[tuple[OrderKey, int]]
"""Keys of requests, the first in order first."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order of service. Smaller keys come first.

    Attributes:
        key: returns the sort key of a request that has a place.
        arrival_place: returns the place of the first request of a call.
        place_behind: returns the place behind all requests that have arrived, given the largest sequence number of these.
    """

    key: Callable[[Request], OrderKey]
    arrival_place: Callable[[Request], float]
    place_behind: Callable[[int], float]


def fcfs_key(request: Request) -> OrderKey:
    """Return the sort key of "first come, first served"."""
    return (0, request.place or 0.0, request.sequence_number)


def priority_key(request: Request) -> OrderKey:
    """Return a sort key: larger priority first, among equals the earlier arrival."""
    return (-request.priority, request.place or 0.0, request.sequence_number)


ORDERS: dict[PolicyName, Order] = {
    "fcfs": Order(fcfs_key, lambda request: float(request.sequence_number), lambda newest: newest + 0.5),
    # Arrival times come from clients' clocks. The newest may be wrong by hours; a place behind it would never be reached.
    "priority": Order(priority_key, lambda request: request.arrival_time, lambda _: time.time()),
}


class RequestSet:
    """Waiting requests, and the number of tokens that they had when they were added."""

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
        """Add a request."""
        self._members[request.key] = request
        self._sizes[request.key] = request.num_tokens
        self.num_tokens += request.num_tokens

    def remove(self, request: Request) -> None:
        """Remove a request; KeyError if it is not in the set."""
        del self._members[request.key]
        self.num_tokens -= self._sizes.pop(request.key)


@dataclass(slots=True)
class _Line:
    """The waiting sequences of one call.

    Attributes:
        heap: the sequences, those with a place first; may contain removed ones.
        head: key of the first sequence, the only one of the call that stands in the queue.
        place: place that the next head gets if it has none; None: behind all requests that have arrived by then, since a
            sequence of the call was served.
    """

    place: float | None
    heap: _Heap = field(default_factory=list)
    head: int | None = None


class RequestQueue(RequestSet):
    """Requests in an order. Removal is lazy: a removed request is skipped when it becomes the first.

    Args:
        order: the order of service.

    Attributes:
        only: key of the only request that `peek` may return for now; None: any request.
    """

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.only: int | None = None
        self._order = order
        self._newest = 0
        self._last_behind = -math.inf  # the last place that was given to a further sequence
        self._lines: dict[CallId, _Line] = {}
        # The first sequences that wait, in two heaps: of calls that run none, and further ones of other calls.
        self._heads, self._further_heads = _Heap(), _Heap()
        self._passed: list[tuple[_Heap, Request]] = []

    def add(self, request: Request) -> None:
        """Put a request in its place, or behind the other sequences of its call."""
        super().add(request)
        self._newest = max(self._newest, request.sequence_number)
        line = self._lines.get(request.call)
        if line is None:
            line = self._lines[request.call] = _Line(self._order.arrival_place(request))
        place = math.inf if request.place is None else request.place
        heapq.heappush(line.heap, ((-request.priority, place, request.sequence_number), request.key))
        self._find_head(request.call, line)

    def take(self, request: Request) -> None:
        """Remove a request that is served; the next sequence of its call goes behind all arrivals. KeyError if it is absent."""
        super().remove(request)
        if request.place is None:  # it was served out of turn
            request.place = self._order.arrival_place(request)
        self._leave_line(request, None)

    def remove(self, request: Request) -> None:
        """Remove a request that has ended; the next sequence of its call gets its place. KeyError if it is absent."""
        super().remove(request)
        self._leave_line(request, request.place)

    def peek(self, *, further: bool = True) -> Request | None:
        """Return the first request without removing it; None if there is none.

        Args:
            further: whether it may be of any call; otherwise of one that runs none, or has run none lately.
        """
        if self.only is not None:
            return None if self._passed else self._members.get(self.only)
        firsts = map(self._first_of, self._heaps if further else (self._heads,))
        first = min(filter(None, firsts), default=None)
        return None if first is None else self._members[first[1]]

    def pass_over(self, first: Request) -> None:
        """Hide the request that `peek` has just returned, and all sequences of its call, until `look_again`."""
        for heap in self._heaps:
            if self.only is not None or (heap and heap[0][1] == first.key):
                self._passed.append((heap, first))
            # A head that was displaced by a preempted sequence, and has become the head again, is there twice.
            while self.only is None and heap and heap[0][1] == first.key:
                heapq.heappop(heap)

    def look_again(self) -> None:
        """Put the hidden requests back in their places."""
        if self.only is None:
            for heap, request in self._passed:
                heapq.heappush(heap, (self._order.key(request), request.key))
        self._passed.clear()

    def note_idle(self, call: CallId) -> None:
        """Note that a call runs no sequence any more: its first waiting one is no further one."""
        line = self._lines.get(call)
        if line is not None and line.head is not None:
            heapq.heappush(self._heads, (self._order.key(self._members[line.head]), line.head))

    @property
    def _heaps(self) -> tuple["_Heap", "_Heap"]:
        return self._heads, self._further_heads

    def _first_of(self, heap: "_Heap") -> tuple[OrderKey, int] | None:
        """Return the first entry of a heap; None if it is empty. Entries of requests that are no heads any more are dropped."""
        while heap:
            request = self._members.get(heap[0][1])
            if request is not None and self._lines[request.call].head == request.key:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _leave_line(self, request: Request, place: float | None) -> None:
        line = self._lines[request.call]
        for heap in self._heaps:
            if heap and heap[0][1] == request.key:
                heapq.heappop(heap)
        if line.head == request.key:
            line.head, line.place = None, place
            self._find_head(request.call, line)

    def _find_head(self, call: CallId, line: _Line) -> None:
        """Put the first sequence of a line into the queue; forget an empty line."""
        while line.heap and line.heap[0][1] not in self._members:
            heapq.heappop(line.heap)
        if not line.heap:
            del self._lines[call]
            return
        head = self._members[line.heap[0][1]]
        if head.key == line.head:
            return
        if head.place is None:
            head.place = self._place_behind() if line.place is None else line.place
        line.head = head.key
        heap = self._further_heads if line.place is None else self._heads
        heapq.heappush(heap, (self._order.key(head), head.key))

    def _place_behind(self) -> float:
        """Return the place behind all requests that have arrived, and behind all places returned before."""
        place = self._order.place_behind(self._newest)
        if place <= self._last_behind < place + 1:  # unless the clock was set back
            place = math.nextafter(self._last_behind, math.inf)
        self._last_behind = place
        return place


class RunningList:
    """The running requests, which hold blocks, in order of service; the last one is the first to be preempted.

    Their keys do not change while they run.

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
