"""Backoff: waits before each attempt to reach a lost peer; the delay doubles up to a limit, with jitter."""

import asyncio
import random

_FIRST_S = 0.05
_LONGEST_S = 2.0


class Backoff:
    """The delays of one connection."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def reset(self) -> None:
        """Reset the delay: the peer has answered."""
        self._next_s = _FIRST_S

    async def wait(self) -> None:
        """Wait before the next attempt."""
        # Jitter: hundreds of frontends may lose an engine core at the same moment.
        delay_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, _LONGEST_S)
        await asyncio.sleep(delay_s)
