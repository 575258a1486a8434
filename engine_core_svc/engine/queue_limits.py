"""Queue limits: limits the waiting requests and tokens, and computes the retry delay of a refusal.

Called by the engine for every new request, in constant time. The delay follows from the rate at which requests left the queue
in the last seconds. Knows counts; knows no requests.
"""

import time
from collections import deque
from collections.abc import Callable

from tetrad.services.errors import Overloaded

_WINDOW_S = 10.0
_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0
_SHARE = 0.1
"""Share of the queue that must leave before a refused client tries again: most clients would meet a full queue otherwise."""


class Departures:
    """The rate at which requests or tokens leave the queue, over a window of `_WINDOW_S` seconds.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: deque[tuple[int, int]] = deque()  # (whole second, number that left in it)

    def note(self, count: int) -> None:
        """Count `count` more departures."""
        second = int(self._clock())
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))
        self._forget_old()

    def per_second(self) -> float:
        """Return the mean rate over the window, per second."""
        self._forget_old()
        return sum(count for _, count in self._seconds) / _WINDOW_S

    def _forget_old(self) -> None:
        while self._seconds and self._seconds[0][0] < self._clock() - _WINDOW_S:
            self._seconds.popleft()


class QueueLimits:
    """Refuses new requests while the queue is full.

    Args:
        max_num_reqs: maximum number of waiting requests; None: no limit.
        max_num_tokens: maximum number of tokens of all waiting requests together; None: no limit.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, max_num_reqs: int | None = None, max_num_tokens: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_num_reqs = max_num_reqs
        self._max_num_tokens = max_num_tokens
        self._reqs, self._tokens = Departures(clock), Departures(clock)

    def note_departures(self, num_reqs: int, num_tokens: int) -> None:
        """Note that `num_reqs` requests, with `num_tokens` tokens together, have left the queue."""
        self._reqs.note(num_reqs)
        self._tokens.note(num_tokens)

    def check(self, *, num_reqs: int, num_tokens: int, new_tokens: int, num_of_call: int = 0) -> None:
        """Raise Overloaded, with a retry delay, if one more request of `new_tokens` tokens would exceed a limit.

        A queue without other requests than the `num_of_call` of the same call accepts any: the call would never fit otherwise.
        """
        if num_reqs == num_of_call:
            return
        if self._max_num_reqs is not None and num_reqs >= self._max_num_reqs:
            text = f"{num_reqs} requests are waiting; this engine queues at most {self._max_num_reqs}."
            raise Overloaded(text, retry_after_s=_retry_after(num_reqs, self._reqs))
        if self._max_num_tokens is not None and num_tokens + new_tokens > self._max_num_tokens:
            text = (
                f"Requests with {num_tokens} tokens are waiting; {new_tokens} more exceed the {self._max_num_tokens} that this "
                "engine queues."
            )
            raise Overloaded(text, retry_after_s=_retry_after(num_tokens, self._tokens))


def _retry_after(amount: int, departures: Departures) -> float:
    rate = departures.per_second()
    seconds = _SHARE * amount / rate if rate else _WINDOW_S
    return min(max(seconds, _MIN_RETRY_S), _MAX_RETRY_S)
