"""CallCounts: the numbers of unfinished and of running sequences of each client call.

Kept by RequestStates; read by the fan-out throttle and by the scheduler. Knows no order and no time.
"""

from collections import Counter

from tetrad.engine_core_svc.core.request import CallId, Request


class CallCounts:
    """Numbers of sequences by client call. Every update takes constant time."""

    def __init__(self) -> None:
        self._unfinished: dict[CallId, int] = {}
        self._running: dict[CallId, int] = {}
        self._num_calls_of_size: Counter[int] = Counter()

    @property
    def num_calls(self) -> int:
        """The number of calls with unfinished sequences."""
        return len(self._unfinished)

    @property
    def num_running_calls(self) -> int:
        """The number of calls with running sequences."""
        return len(self._running)

    @property
    def smallest(self) -> int:
        """The number of unfinished sequences of the call that has the fewest; ValueError without a call."""
        return min(self._num_calls_of_size)

    @property
    def largest(self) -> int:
        """The number of unfinished sequences of the call that has the most; ValueError without a call."""
        return max(self._num_calls_of_size)

    def num_running(self, call: CallId) -> int:
        """Return how many sequences of a call run."""
        return self._running.get(call, 0)

    def num_waiting(self, call: CallId) -> int:
        """Return how many unfinished sequences of a call do not run."""
        return self._unfinished.get(call, 0) - self.num_running(call)

    def add(self, request: Request) -> None:
        """Count a new sequence."""
        self._resize(request.call, 1)

    def finish(self, request: Request) -> None:
        """Stop counting a sequence that has ended; the caller has called `stop` before if it ran."""
        self._resize(request.call, -1)

    def start(self, request: Request) -> None:
        """Count a sequence as running."""
        self._running[request.call] = self._running.get(request.call, 0) + 1

    def stop(self, request: Request) -> None:
        """Stop counting a sequence as running."""
        left = self._running[request.call] - 1
        if left:
            self._running[request.call] = left
        else:
            del self._running[request.call]

    def most_each(self, num_sequences: int) -> int:
        """Return the maximum number of sequences per call for which all calls together have at most `num_sequences`."""
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
