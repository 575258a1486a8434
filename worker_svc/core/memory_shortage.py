"""Memory shortage: turns a failed allocation into one error with the size, the available memory and the option to lower.

The worker uses it while it loads a model, allocates memory and warms up on a host. Knows how libraries report a failed
allocation; knows no tensors.
"""

import contextlib
import errno
from collections.abc import Iterator

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.host import available_memory, size_text

_TEXTS = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "can't start new thread")
"""Texts by which torch, the system, C++ and Python report a failed allocation."""


@contextlib.contextmanager
def memory_for(what: str, size_bytes: int | None, advice: str) -> Iterator[None]:
    """Raise FailedPrecondition if an allocation fails inside the block; other errors pass unchanged.

    Args:
        what: the part that needs memory ("The KV cache"), for the message.
        size_bytes: the memory needed, in bytes; None: unknown.
        advice: a sentence that names the option which lowers the size.
    """
    try:
        yield
    except Exception as error:
        if not _is_shortage(error):
            raise
        raise not_available(what, size_bytes, advice) from None


def not_available(what: str, size_bytes: int | None, advice: str) -> FailedPrecondition:
    """Return the error for a part that does not fit into memory; see `memory_for` for the arguments."""
    available = available_memory()
    needs = "more memory" if size_bytes is None else f"{size_bytes} bytes"
    sizes = f"{'' if size_bytes is None else f'{size_text(size_bytes)} of '}{size_text(available.size_bytes)}"
    return FailedPrecondition(
        f"{what} needs {needs}; {available.size_bytes} are available ({sizes}, limited by {available.limited_by}). {advice}",
        reason="NO_MEMORY",
    )


def _is_shortage(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, reports a failed allocation."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if any(text in str(error) for text in _TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False
