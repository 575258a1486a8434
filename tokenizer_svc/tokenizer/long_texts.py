"""LongTexts: encodes long texts in threads of its own, as many at once as the memory allows.

Called by the servicer on its event loop. Encoding takes up to 330 bytes of memory for each byte of a text, and seconds for a
long text: so only a few are encoded at a time, in the order of their arrival, and short texts do not wait for them.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

_NICENESS = 10

T = TypeVar("T")


class LongTexts:
    """Runs jobs that take memory in proportion to their texts.

    Args:
        threads: most jobs at the same time.
        max_bytes: most bytes of the texts of these jobs; a text that is longer is encoded alone.

    Attributes:
        num_bytes: of the texts that are being encoded.
    """

    def __init__(self, threads: int, max_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encode-long", initializer=_yield_to_others)
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._order = asyncio.Lock()
        self._some_done = asyncio.Event()

    async def run(self, job: Callable[[], T], num_bytes: int) -> T:
        """Run a job that encodes a text of `num_bytes`, and return its result."""
        async with self._order:
            while self.num_bytes and self.num_bytes + num_bytes > self._max_bytes:
                self._some_done.clear()
                await self._some_done.wait()
            running = self._pool.submit(job)
            self.num_bytes += num_bytes
        # The thread frees the memory, however early the caller leaves.
        running.add_done_callback(partial(self._note_done, asyncio.get_running_loop(), num_bytes))
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Start no further job."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _note_done(self, loop: asyncio.AbstractEventLoop, num_bytes: int, _: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(self._free, num_bytes)

    def _free(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        self._some_done.set()


def _yield_to_others() -> None:
    """Let threads and processes that answer others go first on a busy machine."""
    if sys.platform == "linux":  # elsewhere it would be the whole process that yields
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
