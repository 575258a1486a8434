"""Quiet: suppresses what transformers prints while it loads a model, and lets one thread load at a time.

While transformers makes a model, it replaces functions of all its models, such as `tie_weights`, and restores them afterwards.
With two threads the second could restore what the first has put in their place.
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
