"""RefusedRequests: keeps requests that a draining engine core refused, each for a limited time, until its successor connects.

One object per engine client, cleared with each session. Knows ids only.
"""

from collections.abc import Callable, Iterator
from functools import partial

from tetrad.services.timers.running_time import RunningTimer


class RefusedRequests:
    """The ids, each with a timer.

    Args:
        patience_s: how long each request waits, in seconds.
        expire: called with the id of a request that has waited so long.
    """

    def __init__(self, patience_s: float, expire: Callable[[str], None]) -> None:
        self._patience_s = patience_s
        self._expire = expire
        self._timers: dict[str, RunningTimer] = {}

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids."""
        return iter(self._timers)

    def add(self, request_id: str) -> None:
        """Add a refused request and start its timer."""
        self.discard(request_id)
        self._timers[request_id] = RunningTimer(self._patience_s, partial(self._end, request_id))

    def discard(self, request_id: str) -> None:
        """Remove a request; no-op if it was not refused."""
        if timer := self._timers.pop(request_id, None):
            timer.cancel()

    def clear(self) -> None:
        """Remove all requests: the session has ended, and the next one receives them again."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _end(self, request_id: str) -> None:
        del self._timers[request_id]
        self._expire(request_id)
