"""Truncation: min_p, top_k and top_p as one threshold per row, below which a token cannot be drawn.

Works on weights = exp(logit - largest logit), so the most likely token has weight 1. Order: min_p, then top_k of the remaining
tokens, then top_p of the remaining mass. Tokens with the same weight as the last kept token are kept too.

Sorting a vocabulary costs a millisecond per row, so only weights that can matter are sorted. A row is divided into some hundred
disjoint parts, and the largest weight of each part is found. If k of these largest weights reach a value, at least k weights of
the row do; if they together hold a share of the mass, the weights that reach the smallest of them do too. This gives each row a
floor: its threshold is not below it, and usually close to it. Only weights that reach the floor are sorted. The few rows with
many such weights (a high temperature, a wide nucleus) are computed one by one, see wide_rows.py. Thresholds are exact in both
cases.
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
"""Possible numbers of weights in a part; the largest one is used that gives as many parts as top_k needs. Parts interleave,
because likely ids are often neighbours."""
_WIDTHS = (1024, 8192)
"""Limits of the number of candidates: rows below the same limit are sorted together; rows above the last one are wide."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TruncationRows:
    """The truncation parameters of N rows."""

    top_k: Ints  # 0: off
    top_p: Doubles  # 1: off
    min_p: Doubles  # 0: off

    @property
    def is_on(self) -> npt.NDArray[np.bool_]:
        """Whether each row has truncation [N]."""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)

    @property
    def is_nucleus_of_all(self) -> npt.NDArray[np.bool_]:
        """Whether each row's top_p is a share of the whole mass [N], not of the mass that top_k and min_p keep."""
        found: npt.NDArray[np.bool_] = (self.top_p < 1) & (self.top_k == 0) & (self.min_p == 0)
        return found

    def select(self, rows: Ints) -> "TruncationRows":
        """Return the parameters of the rows with these indices."""
        return TruncationRows(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def truncate(weights: torch.Tensor, sums: Floats, rows: TruncationRows) -> Floats:
    """Return the threshold [N] of each row of weights [N, V]; 0 for a row without truncation.

    Args:
        weights: [N, V], see above.
        sums: [N, blocks], sums of neighbouring weights; for truncated rows they are replaced by the sums of kept weights.
        rows: the truncation parameters.
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
    """Return the whole mass [N] of the rows whose top_p is a share of it; 0 for the others."""
    needed = rows.is_nucleus_of_all
    totals = np.zeros(len(weights))
    # float64, because in a long tail, rounding would move the end of the nucleus by whole tokens.
    totals[needed] = (weights if needed.all() else weights[needed]).sum(1, dtype=np.float64)
    return totals


def _floors(weights: torch.Tensor, totals: Doubles, rows: TruncationRows) -> Floats:
    """Return lower bounds [N] of the rows' thresholds."""
    floors = rows.min_p.astype(np.float32)
    if not ((rows.top_k > 0) | (rows.top_p < 1)).any():
        return floors
    parts = _parts(rows.top_k, weights.shape[1])
    for part in np.unique(parts).tolist():
        its = np.flatnonzero(parts == part)
        peaks = _peaks(weights if len(its) == len(weights) else weights[torch.from_numpy(its)], part)
        floors[its] = np.maximum(floors[its], _floors_of_peaks(peaks, totals[its], rows.select(its), weights.shape[1]))
    return floors


def _parts(top_k: Ints, vocab_size: int) -> Ints:
    """Return the number of weights in a part, for each row [N] by its own top_k: a floor must not depend on other rows.

    The floor decides whether a row is wide, and the sums of a wide row are rounded differently.
    """
    fits = vocab_size // np.array(_PARTS) >= top_k[:, None]
    found: Ints = np.array(_PARTS)[fits.argmax(1)]  # the first one if none fits
    return found


def _floors_of_peaks(peaks: Floats, totals: Doubles, rows: TruncationRows, vocab_size: int) -> Floats:
    """Return lower bounds [N] of the rows' thresholds by top_k and top_p, from the peaks [N, parts]."""
    num_peaks = peaks.shape[1]
    every = np.arange(len(peaks))
    kth = np.where((rows.top_k > 0) & (rows.top_k <= num_peaks), peaks[every, np.minimum(rows.top_k, num_peaks) - 1], 0)
    is_short = np.cumsum(peaks, 1, dtype=np.float64) < (rows.top_p * totals)[:, None]
    num_needed = is_short.sum(1)
    covering = np.where(num_needed < num_peaks, peaks[every, np.minimum(num_needed, num_peaks - 1)], 0)
    # The sum of all weights below this value is less than the mass that top_p cuts; the margin is for rounding.
    negligible = 0.99 * (1 - rows.top_p) * totals / vocab_size
    nucleus = np.where(rows.is_nucleus_of_all, np.maximum(covering, negligible), 0).astype(np.float32)
    return np.maximum(kth, nucleus)


def _peaks(weights: torch.Tensor, part: int) -> Floats:
    """Return the largest weight of each part of `part` weights of each row, in descending order."""
    num_rows, vocab_size = weights.shape
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
        """Yield `rows` in groups, with their candidates [n, w] in descending order; rows are padded with zeros."""
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
        """Return the sums [N, num_blocks] of the candidates that reach their row's threshold."""
        kept = self._values >= thresholds[self._rows]
        index = self._rows[kept] * num_blocks + self._ids[kept] // BLOCK
        sums = np.bincount(index, self._values[kept], minlength=len(thresholds) * num_blocks)
        return sums.reshape(-1, num_blocks).astype(np.float32)


def _thresholds(candidates: _Candidates, totals: Doubles, rows: TruncationRows) -> Floats:
    """Return the smallest weight that each row keeps (for wide rows only by min_p); `totals`: see _totals."""
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
        # Without top_p nothing more is cut, even if rounding would cut the last tokens.
        thresholds[group] = np.where(params.top_p < 1, last, least)
    return thresholds
