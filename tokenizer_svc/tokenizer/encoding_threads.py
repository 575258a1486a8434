"""EncodingThreads: runs encoding jobs in threads; short texts share a call in a thread, long texts have threads of their own.

Called by the servicer on its event loop. Knows the sizes of texts, not what a job returns.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from tetrad.services.errors import InvalidRequest
from tetrad.services.message_size import batches
from tetrad.tokenizer_svc.tokenizer.long_texts import LongTexts

T = TypeVar("T")

_THREAD_BYTES = 4 << 10
"""Maximum bytes of texts that are encoded in one call in a thread, unless a single one is longer; takes about 2 ms."""
_LONG_BYTES = 64 << 10
"""Size in bytes above which a text is a long text (long_texts.py); this size takes about 20 ms and up to 20 MiB of memory."""


class EncodingThreads:
    """The threads of a servicer.

    Args:
        pool: threads of short texts and of other jobs; owned by the caller.
        long_text_threads: maximum number of long texts encoded at the same time.
        max_text_bytes: maximum size of a text, and of all long texts encoded at the same time, in bytes of UTF-8.
    """

    def __init__(self, pool: ThreadPoolExecutor, *, long_text_threads: int, max_text_bytes: int) -> None:
        self._pool = pool
        self._long_texts = LongTexts(long_text_threads, max_text_bytes)
        self._max_text_bytes = max_text_bytes

    def text_bytes(self, text: str, *, field: str) -> int:
        """Return the size of a text in UTF-8. Raises InvalidRequest if it is too long or is no valid Unicode."""
        try:
            size_bytes = len(text.encode())
        except UnicodeEncodeError as error:  # JSON can contain half of a surrogate pair: "\ud83d"
            raise InvalidRequest(f"The text holds half of a surrogate pair at character {error.start}.", field=field) from error
        if size_bytes > self._max_text_bytes:
            message = f"The text has {size_bytes} bytes of UTF-8, the limit is {self._max_text_bytes} (max_text_bytes)."
            raise InvalidRequest(message, field=field)
        return size_bytes

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run one job in a thread of the pool."""
        return asyncio.get_running_loop().run_in_executor(self._pool, job)

    async def run_all(self, jobs: Sequence[tuple[Callable[[], T], int]]) -> list[T]:
        """Run jobs, each given with the size of its text, and return their results in order."""
        parts = batches(jobs, lambda job: job[1] + 1, _THREAD_BYTES)
        return [each for part in await _all([self._run_part(part) for part in parts]) for each in part]

    def close(self) -> None:
        """Start to encode no further long texts."""
        self._long_texts.close()

    def _run_part(self, jobs: Sequence[tuple[Callable[[], T], int]]) -> asyncio.Future[list[T]]:
        num_bytes = sum(size for _, size in jobs)
        together = partial(_called, [job for job, _ in jobs])
        if num_bytes <= _LONG_BYTES:
            return self.run(together)
        return asyncio.ensure_future(self._long_texts.run(together, num_bytes))


def _called(jobs: Sequence[Callable[[], T]]) -> list[T]:
    return [job() for job in jobs]


async def _all(jobs: list[asyncio.Future[T]]) -> list[T]:
    """Return the results in order; the first error cancels jobs that have not begun."""
    try:
        return await asyncio.gather(*jobs)
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
