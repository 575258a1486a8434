"""LongTexts: encodes long texts in its own threads, as many at the same time as the memory limit allows.

Called by EncodingThreads on the event loop. Encoding takes up to 330 bytes of memory for each byte of a text, and seconds for a
long text. So only a few are encoded at a time, in the order of their arrival, and short texts do not wait for them.
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
    """Runs jobs that take memory in proportion to the size of their texts.

    Args:
        threads: maximum number of jobs at the same time.
        max_bytes: maximum bytes of the texts of these jobs; a longer text is encoded alone.

    Attributes:
        num_bytes: bytes of the texts that are being encoded.
    """

    def __init__(self, threads: int, max_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encode-long", initializer=_yield_to_others)
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._order = asyncio.Lock()
        self._some_done = asyncio.Event()

    async def run(self, job: Callable[[], T], num_bytes: int) -> T:
        """Run a job that encodes a text of `num_bytes` bytes, and return its result."""
        async with self._order:
            while self.num_bytes and self.num_bytes + num_bytes > self._max_bytes:
                self._some_done.clear()
                await self._some_done.wait()
            running = self._pool.submit(job)
            self.num_bytes += num_bytes
        # The memory is in use until the thread has finished, even if the caller leaves before.
        running.add_done_callback(partial(self._note_done, asyncio.get_running_loop(), num_bytes))
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Start no further jobs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _note_done(self, loop: asyncio.AbstractEventLoop, num_bytes: int, _: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, since the process ends
            loop.call_soon_threadsafe(self._free, num_bytes)

    def _free(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        self._some_done.set()


def _yield_to_others() -> None:
    """Lower the priority of this thread, so that the threads and processes of other requests run first on a busy machine."""
    if sys.platform == "linux":  # elsewhere this would change the whole process
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
