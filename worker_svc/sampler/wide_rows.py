"""Wide rows: truncates a row in which thousands of tokens can be drawn, without sorting them.

Called by truncation.py for each such row; the rules are the same. Non-negative float32 numbers have the same order as their
bits, so the upper half of the bits sorts weights into some ten thousand buckets. Only the bucket in which the nucleus ends is
sorted; the weights of the other buckets are only summed.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tetrad.worker_svc.core.plan import Floats

_BUCKET_BITS = 15


class RowLimits(NamedTuple):
    """The truncation parameters of one row; see TruncationRows."""

    top_k: int
    top_p: float
    min_p: float


def wide_threshold(weights: Floats, limits: RowLimits, total: float) -> np.float32:
    """Return the smallest kept weight of weights [V], whose largest is 1.

    Args:
        weights: [V], the weights of one row.
        limits: the truncation parameters.
        total: the whole mass of the row; used if the row only has top_p.
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
    """Return the smallest weight of the nucleus: the smallest set of largest weights that has this mass."""
    buckets: npt.NDArray[np.int32] = weights.view(np.int32) >> _BUCKET_BITS
    falling = np.bincount(buckets, weights)[::-1]
    cumulated = np.cumsum(falling)
    # Due to rounding, the sum of all weights may be slightly below `mass`; then all weights are kept.
    ending = min(int(np.searchsorted(cumulated, mass)), len(falling) - 1)
    inside = np.sort(weights[buckets == len(falling) - 1 - ending])[::-1]
    before = cumulated[ending] - falling[ending] + np.cumsum(inside, dtype=np.float64) - inside
    found: np.float32 = inside[max(int((before < mass).sum()), 1) - 1]
    return found
