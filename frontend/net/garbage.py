"""Garbage: freezes current objects and raises the garbage collector's thresholds, since a collection stops the process.

Requests have no reference cycles that need a collection after every few hundred objects, and modules never become garbage.
"""

import gc

# Thresholds of gc.set_threshold: new objects between collections, and young collections between larger ones. With ten thousand
# waiting requests a full collection takes 0.1 s.
_THRESHOLDS = (20_000, 20, 100)


def settle_garbage_collection() -> None:
    """Exclude all existing objects from collections, and collect less often. Called once, when a process is ready."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
