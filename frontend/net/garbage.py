"""Garbage: freezes current objects and raises the garbage collector's thresholds, since a collection stops the process.

Requests have no cycles that need a search after every few hundred objects, and modules never become garbage.
"""

import gc

# Young objects between searches, and young searches between wider ones: with ten thousand requests waiting a full search takes
# a tenth of a second.
_THRESHOLDS = (20_000, 20, 100)


def settle_garbage_collection() -> None:
    """Take everything that exists now out of all searches, and search less often. Called once, when a process is ready."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
