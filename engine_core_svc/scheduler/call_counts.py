"""CallCounts: how many sequences each client call has, unfinished and running.

Kept by RequestStates; read by the fan-out throttle and by the scheduler. Knows no order and no time.
"""

from collections import Counter

from tetrad.engine_core_svc.core.request import CallId, Request


class CallCounts:
    """Counts by call. Every update takes constant time."""

    def __init__(self) -> None:
        self._unfinished: dict[CallId, int] = {}
        self._running: dict[CallId, int] = {}
        self._num_calls_of_size: Counter[int] = Counter()

    @property
    def num_calls(self) -> int:
        """Calls with unfinished sequences."""
        return len(self._unfinished)

    @property
    def num_running_calls(self) -> int:
        """Calls of which a sequence runs."""
        return len(self._running)

    @property
    def smallest(self) -> int:
        """Unfinished sequences of the call that has the fewest; ValueError without a call."""
        return min(self._num_calls_of_size)

    @property
    def largest(self) -> int:
        """Unfinished sequences of the call that has the most; ValueError without a call."""
        return max(self._num_calls_of_size)

    def num_running(self, call: CallId) -> int:
        """Return how many sequences of a call run."""
        return self._running.get(call, 0)

    def add(self, request: Request) -> None:
        """A sequence has arrived."""
        self._resize(request.call, 1)

    def finish(self, request: Request) -> None:
        """A sequence has ended; `stop` was called before if it ran."""
        self._resize(request.call, -1)

    def start(self, request: Request) -> None:
        """A sequence runs."""
        self._running[request.call] = self._running.get(request.call, 0) + 1

    def stop(self, request: Request) -> None:
        """A sequence no longer runs."""
        left = self._running[request.call] - 1
        if left:
            self._running[request.call] = left
        else:
            del self._running[request.call]

    def most_each(self, num_sequences: int) -> int:
        """Return how many sequences each call may have at most, so that all of them together have at most so many."""
        level, num_calls, rest = 0, self.num_calls, num_sequences
        for size in sorted(self._num_calls_of_size):
            missing = (size - level) * num_calls
            if missing > rest:
                return level + rest // num_calls
            rest -= missing
            num_calls -= self._num_calls_of_size[size]
            level = size
        return level

    def _resize(self, call: CallId, change: int) -> None:
        before = self._unfinished.get(call, 0)
        after = before + change
        if before:
            self._num_calls_of_size[before] -= 1
            if not self._num_calls_of_size[before]:
                del self._num_calls_of_size[before]
        if after:
            self._unfinished[call] = after
            self._num_calls_of_size[after] += 1
        else:
            del self._unfinished[call]
