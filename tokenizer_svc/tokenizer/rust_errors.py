"""Rust errors: converts the errors and panics of the tokenizers library over a file, a text or ids to a TetradError.

An error is raised as a bare Exception. A panic is raised as pyo3_runtime.PanicException, which is not a subclass of Exception,
so that it passes every handler and ends the call with UNKNOWN, or the process. Its class cannot be imported, so it is
recognized by name.
"""

from collections.abc import Callable
from types import TracebackType

from tetrad.services.errors import TetradError


class RustErrors:
    """A context, for any number of uses, that raises another error for an error of the library.

    Args:
        error_of: returns that error for a reason of one line.
    """

    def __init__(self, error_of: Callable[[str], TetradError]) -> None:
        self._error_of = error_of

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Raise the other error for an error of the library."""
        if kind is Exception or (kind is not None and kind.__name__ == "PanicException"):
            raise self._error_of((str(error).splitlines() or ["panic"])[0][:200]) from error
