"""Deadlines: keeps the time limit of the current call in a context variable.

Set where the call arrives, from a header, a gRPC deadline or the server's setting. It holds for everything that the call
awaits and for the tasks it starts. Knows nothing of requests, engines or protocols.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from tetrad.services.errors import DeadlineExceeded


@dataclass(frozen=True)
class Deadline:
    """One deadline.

    Attributes:
        timeout_s: the time limit as it was given, for messages.
        at_s: end of the time on the monotonic clock, so that changes of the wall clock have no effect.
    """

    timeout_s: float
    at_s: float

    @property
    def remaining_s(self) -> float:
        """The seconds until the deadline, at least 0."""
        return max(self.at_s - time.monotonic(), 0.0)

    def error(self) -> DeadlineExceeded:
        """Return the error of a request that is unfinished at its deadline."""
        return DeadlineExceeded(f"The request was not finished within its time limit of {self.timeout_s:g} s.")


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextlib.contextmanager
def deadline_after(timeout_s: float | None) -> Iterator[None]:
    """Limit the work inside to `timeout_s` from now, or to the current deadline if that is earlier. None: no further limit."""
    token = _current.set(earliest_deadline(timeout_s))
    try:
        yield
    finally:
        _current.reset(token)


def tighten_deadline(timeout_s: float | None) -> None:
    """Limit the rest of this task to `timeout_s` from now, unless its deadline is earlier."""
    _current.set(earliest_deadline(timeout_s))


def earliest_deadline(timeout_s: float | None) -> Deadline | None:
    """Return the current deadline, or the one `timeout_s` from now if that is earlier. None: there is no deadline."""
    current = _current.get()
    if timeout_s is None:
        return current
    given = Deadline(timeout_s, time.monotonic() + timeout_s)
    return given if current is None or given.at_s < current.at_s else current


@contextlib.asynccontextmanager
async def within(deadline: Deadline | None) -> AsyncIterator[None]:
    """Cancel the work inside at the deadline and raise DeadlineExceeded. None: no time limit."""
    if deadline is None:
        yield
        return
    limit = asyncio.timeout(deadline.remaining_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise deadline.error() from None
        raise
