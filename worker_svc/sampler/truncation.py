"""Truncation: min_p, top_k and top_p as one threshold per row, below which a token cannot be drawn.

Works on weights = exp(logit - largest logit), so the most likely token weighs 1. Order: min_p, then top_k of the remaining
tokens, then top_p of the remaining mass. Tokens as likely as the last one kept are kept too.

Sorting a vocabulary costs a millisecond a row, so only values that can matter are sorted. The largest weights of
some hundred disjoint parts of a row are themselves weights of the row: where k of them reach a value, so do at least k
weights; where together they hold a share of the mass, so do the weights that reach the least of them. That gives each row a
floor that its threshold cannot lie below, usually close to it; what reaches the floor is sorted. The few rows of which most
reaches it (a high temperature, a wide nucleus) are taken one by one, see wide_rows.py. Thresholds are exact either way.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.sampler.draw import BLOCK
from tetrad.worker_svc.sampler.wide_rows import RowLimits, wide_threshold

_PARTS = (64, 16, 4)
"""Weights of a part, the largest that gives as many parts as top_k needs; parts interleave, as likely ids stand together."""
_WIDTHS = (1024, 8192)
"""Rows with so many candidates are sorted together; those with more are wide."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TruncationRows:
    """Parameters of N rows."""

    top_k: Ints  # 0: off
    top_p: Doubles  # 1: off
    min_p: Doubles  # 0: off

    @property
    def is_on(self) -> npt.NDArray[np.bool_]:
        """Which rows truncate."""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)

    @property
    def is_nucleus_of_all(self) -> npt.NDArray[np.bool_]:
        """Which rows' top_p counts from all of the mass, not from what top_k and min_p leave of it."""
        found: npt.NDArray[np.bool_] = (self.top_p < 1) & (self.top_k == 0) & (self.min_p == 0)
        return found

    def select(self, rows: Ints) -> "TruncationRows":
        """Return the parameters of some of the rows."""
        return TruncationRows(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def truncate(weights: torch.Tensor, sums: Floats, rows: TruncationRows) -> Floats:
    """Return the threshold [N] of each row of weights [N, V]; 0 where nothing is cut.

    Args:
        weights: see above.
        sums: [N, blocks], of neighbouring weights; those of cut rows become the sums of what is kept.
        rows: what to cut.
    """
    thresholds = np.zeros(len(sums), np.float32)
    cut = np.flatnonzero(rows.is_on)
    if not len(cut):
        return thresholds
    chosen, params = (weights, rows) if len(cut) == len(sums) else (weights[torch.from_numpy(cut)], rows.select(cut))
    values, totals = chosen.numpy(), _totals(chosen.numpy(), params)
    candidates = _Candidates(values, _floors(chosen, totals, params))
    found = _thresholds(candidates, totals, params)
    kept = candidates.block_sums(found, sums.shape[1])
    for row in candidates.wide_rows.tolist():
        limits = RowLimits(int(params.top_k[row]), float(params.top_p[row]), float(params.min_p[row]))
        found[row] = wide_threshold(values[row], limits, float(totals[row]))
        kept[row] = np.add.reduceat(np.where(values[row] >= found[row], values[row], 0), np.arange(0, values.shape[1], BLOCK))
    thresholds[cut], sums[cut] = found, kept
    return thresholds


def _totals(weights: Floats, rows: TruncationRows) -> Doubles:
    """Return the mass [N] of the rows whose top_p counts from all of it; 0 for the others."""
    needed = rows.is_nucleus_of_all
    totals = np.zeros(len(weights))
    # float64: near the end of a long tail rounding would move the nucleus by whole tokens.
    totals[needed] = (weights if needed.all() else weights[needed]).sum(1, dtype=np.float64)
    return totals


def _floors(weights: torch.Tensor, totals: Doubles, rows: TruncationRows) -> Floats:
    """Return values [N] that the rows' thresholds are not below."""
    floors = rows.min_p.astype(np.float32)
    if not ((rows.top_k > 0) | (rows.top_p < 1)).any():
        return floors
    peaks = _peaks(weights, int(rows.top_k.max()))
    num_peaks = peaks.shape[1]
    every = np.arange(len(peaks))
    kth = np.where((rows.top_k > 0) & (rows.top_k <= num_peaks), peaks[every, np.minimum(rows.top_k, num_peaks) - 1], 0)
    is_short = np.cumsum(peaks, 1, dtype=np.float64) < (rows.top_p * totals)[:, None]
    num_needed = is_short.sum(1)
    covering = np.where(num_needed < num_peaks, peaks[every, np.minimum(num_needed, num_peaks - 1)], 0)
    # All weights below this together are less than what top_p leaves out; the margin is for rounding.
    negligible = 0.99 * (1 - rows.top_p) * totals / weights.shape[1]
    nucleus = np.where(rows.is_nucleus_of_all, np.maximum(covering, negligible), 0).astype(np.float32)
    return np.maximum(floors, np.maximum(kth, nucleus))


def _peaks(weights: torch.Tensor, most: int) -> Floats:
    """Return the largest weight of each part of each row, falling; at least `most` of them if that many parts are worth it."""
    num_rows, vocab_size = weights.shape
    part = next((part for part in _PARTS if vocab_size // part >= most), _PARTS[0])
    num_parts = vocab_size // part
    rest = weights[:, num_parts * part :]
    peaks = weights[:, : num_parts * part].reshape(num_rows, part, num_parts).amax(1) if num_parts else rest[:, :0]
    found: Floats = np.sort(torch.cat([peaks, rest], 1).numpy(), axis=1)[:, ::-1]
    return found


class _Candidates:
    """The weights that reach their row's floor, except those of wide rows.

    Args:
        weights: [N, V].
        floors: [N].
    """

    def __init__(self, weights: Floats, floors: Floats) -> None:
        reach = weights >= floors[:, None]
        self.wide_rows = np.flatnonzero(np.count_nonzero(reach, axis=1) > _WIDTHS[-1])
        reach[self.wide_rows] = False
        flat = np.flatnonzero(reach)
        self._rows, self._ids = np.divmod(flat, weights.shape[1])
        self._values = weights.reshape(-1)[flat]
        self.counts = np.bincount(self._rows, minlength=len(weights))  # [N]
        self._starts = np.cumsum(self.counts) - self.counts

    def falling(self, rows: Ints) -> Iterator[tuple[Ints, Floats]]:
        """Yield `rows` in groups, with their candidates [n, w] from the largest on; zeros fill a row up."""
        least = 0
        for most in _WIDTHS:
            group = rows[(self.counts[rows] > least) & (self.counts[rows] <= most)]
            least = most
            if len(group):
                width = int(self.counts[group].max())
                places = np.arange(width)
                is_there = places < self.counts[group][:, None]
                index = np.where(is_there, self._starts[group][:, None] + places, 0)
                yield group, np.sort(np.where(is_there, self._values[index], np.float32(0)), axis=1)[:, ::-1]

    def block_sums(self, thresholds: Floats, num_blocks: int) -> Floats:
        """Return the sums [N, num_blocks] of those that reach their row's threshold."""
        kept = self._values >= thresholds[self._rows]
        index = self._rows[kept] * num_blocks + self._ids[kept] // BLOCK
        sums = np.bincount(index, self._values[kept], minlength=len(thresholds) * num_blocks)
        return sums.reshape(-1, num_blocks).astype(np.float32)


def _thresholds(candidates: _Candidates, totals: Doubles, rows: TruncationRows) -> Floats:
    """Return the least weight that each row keeps (wide rows: min_p); see _totals."""
    thresholds = rows.min_p.astype(np.float32)
    for group, values in candidates.falling(np.flatnonzero((rows.top_k > 0) | (rows.top_p < 1))):
        params, every = rows.select(group), np.arange(len(group))
        width = values.shape[1]
        has_kth = (params.top_k > 0) & (params.top_k <= width)
        kth = np.where(has_kth, values[every, np.minimum(np.maximum(params.top_k, 1), width) - 1], 0)
        least = np.maximum(thresholds[group], kth)
        masses = np.where(values >= least[:, None], values, 0).astype(np.float64)
        cumulated = np.cumsum(masses, 1)
        mass = np.where(params.is_nucleus_of_all, totals[group], cumulated[:, -1])
        in_nucleus = (masses > 0) & ((cumulated - masses) < (params.top_p * mass)[:, None])
        last = values[every, np.maximum(in_nucleus.sum(1), 1) - 1]
        # With top_p off nothing more is cut, whatever rounding says of the last tokens.
        thresholds[group] = np.where(params.top_p < 1, last, least)
    return thresholds
