"""Triton's interpreter, faster: it takes the language's functions over once, not at every launch and every call of a function.

Each time, Triton searches all members of the language for functions to replace, and it builds its table of NumPy's types for
every value. In these tests nothing but the interpreter uses the language, so what is replaced stays so.
"""

import inspect
import threading
from collections.abc import Callable
from functools import cache, wraps

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def install() -> None:
    """Make the interpreter of this process faster; again: a no-op."""
    if not isinstance(interpreter._patch_lang, Replaced):
        interpreter._patch_lang = Replaced(interpreter._patch_lang)
        interpreter._get_np_dtype = by_scalar(interpreter._get_np_dtype)
        interpreter.GridExecutor.__call__ = one_at_a_time(interpreter.GridExecutor.__call__)


class Replaced:
    """Replaces the language's functions for the interpreter, once for each set of modules that a kernel sees.

    Args:
        replace: Triton's own.
    """

    def __init__(self, replace: Callable[[object], object]) -> None:
        self._replace = replace
        self._known: set[object] = set()
        self._seen: set[frozenset[str]] = set()

    def __call__(self, function: Callable[..., object]) -> "Replaced":
        if function not in self._known:
            self._known.add(function)
            values = function.__globals__.values()
            modules = frozenset(each.__name__ for each in values if inspect.ismodule(each) and each in (tl, tl.core))
            if modules not in self._seen:
                self._seen.add(modules)
                self._replace(function)
        return self

    def restore(self) -> None:
        """Leave all as it is: the next launch needs it again."""


def by_scalar(dtype_of: Callable[[tl.dtype], np.dtype]) -> Callable[[tl.dtype], np.dtype]:
    """Return Triton's look-up of a NumPy type, with the answer for each scalar kept."""
    of_scalar = cache(dtype_of)

    def found(kind: tl.dtype) -> np.dtype:
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return np.dtype(np.uint64) if isinstance(scalar, tl.pointer_type) else of_scalar(scalar)

    return found


def one_at_a_time(launch: Callable[..., object]) -> Callable[..., object]:
    """Return `launch` for callers on several threads: the interpreter keeps the place in the grid in one global object."""
    lock = threading.Lock()

    @wraps(launch)
    def locked(*arguments: object, **options: object) -> object:
        with lock:
            return launch(*arguments, **options)

    return locked
