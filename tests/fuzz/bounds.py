"""Bounds: the limits of time and memory for one example."""

import contextlib
import resource
import signal
from collections.abc import Iterator

_MAX_EXTRA_BYTES = 768 << 20


class TooSlow(BaseException):
    """Raised in the main thread; no handler of ours or a library's may take it for an error of the file."""


@contextlib.contextmanager
def bounded(seconds: float, *, max_extra_bytes: int = _MAX_EXTRA_BYTES) -> Iterator[None]:
    """Run the body with a limit of time and of memory that it may take in addition: TooSlow, MemoryError or a crash."""

    def too_slow(*_: object) -> None:
        raise TooSlow(f"longer than {seconds:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:  # noqa: PTH123 - once for each of many thousand examples
        size = int(file.read().split()[0]) * resource.getpagesize()
    previous = signal.signal(signal.SIGALRM, too_slow)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (size + max_extra_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
