"""Admission: counts the requests and prompt tokens of this frontend, and refuses more with a time to retry.

Asked before a prompt is tokenized, so that a refusal costs next to nothing however long the queue is: two comparisons. Until a
prompt is tokenized its length is estimated from its characters. Knows no engine: each has limits of its own. One event loop.
"""

import time
from collections.abc import Callable
from typing import Self

from tetrad.services.errors import Overloaded

# What tokenizers bring of ordinary text; the estimate holds for milliseconds.
_CHARS_PER_TOKEN = 4
_WINDOW_S = 10.0
_LEAST_RETRY_S, _MOST_RETRY_S = 1.0, 60.0
# Who comes back when one place is free meets everybody else who was told so: wait for a share of the queue.
_SHARE_TO_WAIT_FOR = 0.1


def estimated_tokens(num_chars: int) -> int:
    """Return about how many tokens a text has."""
    return num_chars // _CHARS_PER_TOKEN + 1


class Rate:
    """How much happens a second, lately: over the last 10 to 20 seconds, in two counters and without a timer.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._before = 0
        self._now = 0

    def add(self, number: int) -> None:
        """Count what happened."""
        self._turn()
        self._now += number

    def per_second(self) -> float:
        """Return the rate; 0 if nothing happened."""
        self._turn()
        return (self._before + self._now) / (_WINDOW_S + self._clock() - self._start)

    def _turn(self) -> None:
        passed = self._clock() - self._start
        if passed < _WINDOW_S:
            return
        self._before = self._now if passed < 2 * _WINDOW_S else 0
        self._now = 0
        self._start += passed // _WINDOW_S * _WINDOW_S


class Ticket:
    """One admitted request's share of the limits; released when the request has ended, whatever way.

    Args:
        admission: that gave it.
        num_requests: sequences: an n of 3 counts 3.
        num_tokens: of the prompt of each.
    """

    __slots__ = ("_admission", "_num_queued_tokens", "_num_requests")

    def __init__(self, admission: "Admission", num_requests: int, num_tokens: int) -> None:
        self._admission = admission
        self._num_requests = num_requests
        self._num_queued_tokens = num_tokens * num_requests

    def correct(self, num_tokens: int) -> None:
        """Replace the estimate by what the prompt has."""
        new = num_tokens * self._num_requests
        self._admission.num_queued_tokens += new - self._num_queued_tokens
        self._num_queued_tokens = new

    def leave_queue(self) -> None:
        """Say that the prompt has been computed. Again: a no-op."""
        self._admission.num_queued_tokens -= self._num_queued_tokens
        self._admission.token_rate.add(self._num_queued_tokens)
        self._num_queued_tokens = 0

    def release(self) -> None:
        """Give everything back. Again: a no-op."""
        if self._num_requests:
            self.leave_queue()
            self._admission.num_requests -= self._num_requests
            self._admission.request_rate.add(self._num_requests)
            self._num_requests = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Admission:
    """The limits of one frontend, and what is taken of them.

    Args:
        max_num_requests: most unfinished requests; each of n outputs counts. 0: no limit.
        max_num_queued_tokens: most prompt tokens of requests that have no token yet. 0: no limit.
        clock: seconds; monotonic.
    """

    def __init__(
        self, max_num_requests: int, max_num_queued_tokens: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_num_requests = max_num_requests
        self._max_num_queued_tokens = max_num_queued_tokens
        self.num_requests = 0
        self.num_queued_tokens = 0
        self.request_rate = Rate(clock)
        self.token_rate = Rate(clock)

    def check(self, *, num_requests: int = 1, num_tokens: int = 1) -> None:
        """Raise Overloaded if so much more cannot be taken now. What is alone is always taken."""
        most = self._max_num_requests
        if most and self.num_requests and self.num_requests + num_requests > most:
            text = f"This server has {self.num_requests} unfinished requests; at most {most} are taken. Try again later."
            needed = self.num_requests + num_requests - most
            raise _overloaded(text, needed, most, self.request_rate)
        most, num_tokens = self._max_num_queued_tokens, num_tokens * num_requests
        if most and self.num_queued_tokens and self.num_queued_tokens + num_tokens > most:
            text = (
                f"Prompts of {self.num_queued_tokens} tokens wait at this server; at most {most} are taken, and this request "
                f"brings about {num_tokens}. Try again later."
            )
            needed = self.num_queued_tokens + num_tokens - most
            raise _overloaded(text, needed, most, self.token_rate)

    def admit(self, *, num_requests: int = 1, num_tokens: int) -> Ticket:
        """Take a request's share; Overloaded as in `check`.

        Args:
            num_requests: sequences.
            num_tokens: of the prompt, each sequence's.
        """
        self.check(num_requests=num_requests, num_tokens=num_tokens)
        self.num_requests += num_requests
        self.num_queued_tokens += num_tokens * num_requests
        return Ticket(self, num_requests, num_tokens)


def _overloaded(text: str, needed: int, most: int, rate: Rate) -> Overloaded:
    per_second = rate.per_second()
    wanted = max(needed, most * _SHARE_TO_WAIT_FOR)
    retry_after_s = wanted / per_second if per_second else _MOST_RETRY_S
    return Overloaded(text, retry_after_s=min(max(retry_after_s, _LEAST_RETRY_S), _MOST_RETRY_S))
