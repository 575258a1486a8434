"""Garbage: sets how often a service's process searches for reference cycles: rarely while it starts, then as Python does.

A service calls `collect_rarely` before it imports its modules, and `run_service` calls `collect_as_usual` when it is ready.
Modules are a million objects that never become garbage: searches among them take a fifth of the CPU time of a start. A command,
and a process of a sandbox, import them under `no_search`.
"""

import contextlib
import gc
from collections.abc import Iterator

_USUAL = gc.get_threshold()
_RARE = (200_000, *_USUAL[1:])
"""New objects before a search. Modules are fewer; what a failing load leaves is still found."""


def collect_rarely() -> None:
    """Search for garbage only after very many new objects."""
    gc.set_threshold(*_RARE)


def collect_as_usual() -> None:
    """Search as often as Python does, and never among the objects that exist now."""
    gc.freeze()
    gc.set_threshold(*_USUAL)


@contextlib.contextmanager
def no_search() -> Iterator[None]:
    """Search for no garbage while modules are imported, and never among them later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
