"""Batching: waits a few turns of the event loop, so that requests which arrive together share one message."""

import asyncio
import math
import time
from collections.abc import Callable

_QUIET_TURNS = 2
"""Of the event loop, without a request: a burst's next one has come by then, if only its connection."""
_LONGEST_S = 0.008
"""Of a longer one, what has come goes ahead."""


async def end_of_burst(count: Callable[[], int], *, most: float = math.inf) -> None:
    """Return when the event loop brings no more: as soon as nothing else is ready, of a single request.

    Args:
        count: of what has come; 0 ends it.
        most: that is sent together.
    """
    began, num, num_quiet = time.monotonic(), count(), 0
    while 0 < num < most and num_quiet < _QUIET_TURNS and time.monotonic() - began < _LONGEST_S:
        await asyncio.sleep(0)
        num_quiet = num_quiet + 1 if count() == num else 0
        num = count()
