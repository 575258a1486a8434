"""Quiet loading: suppresses transformers' output while it loads a model, and allows one load at a time in a process.

During a load, transformers replaces functions of all its model classes, such as `tie_weights`, and restores them afterwards. If
two threads loaded at the same time, one of them could restore the other's replacement for good.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOADING = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress transformers' progress bars and advice; wait until no other thread loads."""
    from transformers.utils import logging

    with _LOADING:
        level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if has_bar:
                logging.enable_progress_bar()
