"""Wide rows: the truncation of a row of which thousands of tokens may be drawn, without sorting them.

Called by truncation.py, row by row, and has its rules. A float32 that is not negative is ordered like its bits, so their upper
half sorts weights into some ten thousand buckets; the one in which the nucleus ends is looked into, the others are only added.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tetrad.worker_svc.core.plan import Floats

_BUCKET_BITS = 15


class RowLimits(NamedTuple):
    """Parameters of one row; see TruncationRows."""

    top_k: int
    top_p: float
    min_p: float


def wide_threshold(weights: Floats, limits: RowLimits, total: float) -> np.float32:
    """Return the least weight that is kept of weights [V], the largest of which is 1.

    Args:
        weights: of one row.
        limits: what to keep.
        total: mass of the row; used if top_p alone cuts it.
    """
    least = np.float32(limits.min_p)
    if 0 < limits.top_k < len(weights):
        place = len(weights) - limits.top_k
        least = max(least, np.partition(weights, place)[place])
    if limits.top_p >= 1:
        return least
    kept = weights[weights >= least]
    mass = kept.sum(dtype=np.float64) if limits.top_k or limits.min_p else total
    return _nucleus_end(kept, limits.top_p * mass)


def _nucleus_end(weights: Floats, mass: float) -> np.float32:
    """Return the least weight of the smallest set of largest weights that has this mass."""
    buckets: npt.NDArray[np.int32] = weights.view(np.int32) >> _BUCKET_BITS
    falling = np.bincount(buckets, weights)[::-1]
    cumulated = np.cumsum(falling)
    # Rounding may leave the whole a little short of what is wanted: then all is in.
    ending = min(int(np.searchsorted(cumulated, mass)), len(falling) - 1)
    inside = np.sort(weights[buckets == len(falling) - 1 - ending])[::-1]
    before = cumulated[ending] - falling[ending] + np.cumsum(inside, dtype=np.float64) - inside
    found: np.float32 = inside[max(int((before < mass).sum()), 1) - 1]
    return found
