"""Rust panics: converts a panic of the tokenizers library over a file or a text to a TetradError.

A panic is raised as pyo3_runtime.PanicException, which is not a subclass of Exception, so that it passes every handler and ends
the call with UNKNOWN, or the process. Its class cannot be imported, so it is recognized by name.
"""

import contextlib
from collections.abc import Callable, Iterator

from tetrad.services.errors import TetradError


@contextlib.contextmanager
def panics_become(error_of: Callable[[str], TetradError]) -> Iterator[None]:
    """Raise `error_of(reason)` for a panic while the context is open; the reason is one line."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise error_of((str(error).splitlines() or ["panic"])[0][:200]) from error
