"""Admission: counts the requests and prompt tokens of this frontend, and refuses requests beyond its limits with a retry delay.

Frontends that share a port share the limits: each also counts the requests of the others.

Checked before a prompt is tokenized: a refusal costs two comparisons at any queue length. Until a prompt is tokenized its
length is estimated from its characters. Engine cores have limits of their own. One event loop.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from tetrad.services.errors import Overloaded

# Characters per token of ordinary text. The estimate is replaced after milliseconds, when the prompt is tokenized.
_CHARS_PER_TOKEN = 4
_WINDOW_S = 10.0
_LEAST_RETRY_S, _MOST_RETRY_S = 1.0, 60.0
# If the delay lasted until one place is free, all refused clients would retry at once: wait for a share of the queue.
_SHARE_TO_WAIT_FOR = 0.1


def estimated_tokens(num_chars: int) -> int:
    """Return an estimate of the number of tokens of a text with `num_chars` characters."""
    return num_chars // _CHARS_PER_TOKEN + 1


class Rate:
    """The rate of events per second over the last 10 to 20 seconds; needs two counters and no timer.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._before = 0
        self._now = 0

    def add(self, number: int) -> None:
        """Count `number` events."""
        self._turn()
        self._now += number

    def per_second(self) -> float:
        """Return the rate; 0 if there were no events."""
        self._turn()
        return (self._before + self._now) / (_WINDOW_S + self._clock() - self._start)

    def _turn(self) -> None:
        passed = self._clock() - self._start
        if passed < _WINDOW_S:
            return
        self._before = self._now if passed < 2 * _WINDOW_S else 0
        self._now = 0
        self._start += passed // _WINDOW_S * _WINDOW_S


class OtherFrontends(Protocol):
    """The frontends that share this one's limits."""

    def publish(self, num_requests: int, num_tokens: int) -> None:
        """Publish this frontend's unfinished requests and queued tokens to the others."""

    def others(self) -> tuple[int, int]:
        """Return the numbers of the others' unfinished requests and queued tokens."""

    def forget_dead(self) -> None:
        """Remove the counts of frontends that have ended."""


class Alone:
    """OtherFrontends of a frontend that shares its limits with none."""

    def publish(self, num_requests: int, num_tokens: int) -> None:
        """Do nothing."""

    def others(self) -> tuple[int, int]:
        """Return zeros."""
        return 0, 0

    def forget_dead(self) -> None:
        """Do nothing."""


class Ticket:
    """The share of the limits that one admitted request holds until it has ended.

    Args:
        admission: the limits that the share belongs to.
        num_requests: number of sequences: an n of 3 counts 3.
        num_tokens: number of prompt tokens of each sequence.
    """

    __slots__ = ("_admission", "_num_queued_tokens", "_num_requests")

    def __init__(self, admission: "Admission", num_requests: int, num_tokens: int) -> None:
        self._admission = admission
        self._num_requests = num_requests
        self._num_queued_tokens = num_tokens * num_requests

    def correct(self, num_tokens: int) -> None:
        """Replace the estimate by the number of tokens of the prompt."""
        new = num_tokens * self._num_requests
        self._admission.add(0, new - self._num_queued_tokens)
        self._num_queued_tokens = new

    def leave_queue(self) -> None:
        """Release the share of queued tokens: the prompt has been computed. Further calls do nothing."""
        self._admission.add(0, -self._num_queued_tokens)
        self._admission.token_rate.add(self._num_queued_tokens)
        self._num_queued_tokens = 0

    def release(self) -> None:
        """Release the whole share. Further calls do nothing."""
        if self._num_requests:
            self.leave_queue()
            self._admission.add(-self._num_requests, 0)
            self._admission.request_rate.add(self._num_requests)
            self._num_requests = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Admission:
    """The limits of one frontend, and the numbers in use.

    Args:
        max_num_requests: maximum number of unfinished requests; each of n outputs counts. 0: no limit.
        max_num_queued_tokens: maximum number of prompt tokens of requests without an output token. 0: no limit.
        clock: seconds; monotonic.
        frontends: the other frontends that share the limits; None: there are none.
    """

    def __init__(
        self,
        max_num_requests: int,
        max_num_queued_tokens: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        frontends: OtherFrontends | None = None,
    ) -> None:
        self._frontends = frontends or Alone()
        self._max_num_requests = max_num_requests
        self._max_num_queued_tokens = max_num_queued_tokens
        self.num_requests = 0
        self.num_queued_tokens = 0
        self.request_rate = Rate(clock)
        self.token_rate = Rate(clock)

    def check(self, *, num_requests: int = 1, num_tokens: int = 1) -> None:
        """Raise Overloaded if so much more exceeds a limit. A request without others is always admitted.

        Args:
            num_requests: number of sequences.
            num_tokens: number of prompt tokens of all sequences together.
        """
        if self._excess(num_requests, num_tokens) is not None:
            self._frontends.forget_dead()
            if (error := self._excess(num_requests, num_tokens)) is not None:
                raise error

    def admit(self, *, num_requests: int = 1, num_tokens: int) -> Ticket:
        """Reserve a request's share of the limits; Overloaded as in `check`.

        Args:
            num_requests: number of sequences.
            num_tokens: number of prompt tokens of each sequence.
        """
        [ticket] = self.admit_all(num_requests, [num_tokens])
        return ticket

    def admit_all(self, num_requests: int, num_tokens: Sequence[int]) -> list[Ticket]:
        """Reserve the shares of all prompts of one call, or of none; Overloaded as in `check`.

        Args:
            num_requests: number of sequences of each prompt.
            num_tokens: number of tokens of each prompt.
        """
        requests, tokens = num_requests * len(num_tokens), num_requests * sum(num_tokens)
        self.check(num_requests=requests, num_tokens=tokens)
        self.add(requests, tokens)
        if self._frontends.others() != (0, 0):
            # Another frontend may have taken the last place at the same moment: by now each sees the other's addition.
            self.add(-requests, -tokens, is_told=False)
            error = self._excess(requests, tokens)
            self.add(requests if error is None else 0, tokens if error is None else 0)
            if error is not None:
                raise error
        return [Ticket(self, num_requests, each) for each in num_tokens]

    def add(self, num_requests: int, num_tokens: int, *, is_told: bool = True) -> None:
        """Change the numbers in use, and publish them to the other frontends unless they change again at once."""
        self.num_requests += num_requests
        self.num_queued_tokens += num_tokens
        if is_told:
            self._frontends.publish(self.num_requests, self.num_queued_tokens)

    @property
    def num_requests_of_others(self) -> int:
        """The number of unfinished requests of the other frontends that share the limits."""
        return self._frontends.others()[0]

    def _excess(self, num_requests: int, num_tokens: int) -> Overloaded | None:
        """Return the error if so much more exceeds a limit; None: it does not. Arguments: see `check`."""
        of_others = self._frontends.others()
        most, taken = self._max_num_requests, self.num_requests + of_others[0]
        if most and taken and taken + num_requests > most:
            text = f"This server has {taken} unfinished requests; at most {most} are taken. Try again later."
            return _overloaded(text, taken + num_requests - most, most, self.request_rate)
        most, taken = self._max_num_queued_tokens, self.num_queued_tokens + of_others[1]
        if most and taken and taken + num_tokens > most:
            text = (
                f"Prompts of {taken} tokens wait at this server; at most {most} are taken, and this request "
                f"brings about {num_tokens}. Try again later."
            )
            return _overloaded(text, taken + num_tokens - most, most, self.token_rate)
        return None


def _overloaded(text: str, needed: int, most: int, rate: Rate) -> Overloaded:
    per_second = rate.per_second()
    wanted = max(needed, most * _SHARE_TO_WAIT_FOR)
    retry_after_s = wanted / per_second if per_second else _MOST_RETRY_S
    return Overloaded(text, retry_after_s=min(max(retry_after_s, _LEAST_RETRY_S), _MOST_RETRY_S))
