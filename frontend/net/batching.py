"""Batching: waits a few iterations of the event loop, so that requests which arrive together share one message."""

import asyncio
import math
import time
from collections.abc import Callable

_QUIET_TURNS = 2
"""Iterations of the event loop without a new request that complete a batch: simultaneous requests have no larger gap."""
_LONGEST_S = 0.008
"""Maximum number of seconds that a batch waits."""


async def batch_complete(count: Callable[[], int], *, most: float = math.inf) -> None:
    """Wait until no further request has joined a batch within a few iterations of the event loop.

    Args:
        count: returns the number of requests in the batch; 0 ends the wait.
        most: maximum number of requests of a message; a batch of that size is complete.
    """
    began, num, num_quiet = time.monotonic(), count(), 0
    while 0 < num < most and num_quiet < _QUIET_TURNS and time.monotonic() - began < _LONGEST_S:
        await asyncio.sleep(0)
        num_quiet = num_quiet + 1 if count() == num else 0
        num = count()
