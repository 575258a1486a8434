"""Truncation: min_p, top_k and top_p as one threshold per row, below which a token cannot be drawn.

Works on weights = exp(logit - largest logit), so the most likely token weighs 1. Order: min_p, then top_k among what is left,
then top_p of the mass that is left. Tokens as likely as the last one kept are kept too. A full sort of a vocabulary costs
milliseconds a row, so the few largest weights are looked at first, and more of them only for rows that they cannot decide.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.plan import Ints

_FIRST_LOOK = 128
_SECOND_LOOK = 4096


@dataclass(frozen=True, slots=True)
class TruncationRows:
    """Parameters of N rows."""

    top_k: Ints  # 0: off
    top_p: npt.NDArray[np.float64]  # 1: off
    min_p: npt.NDArray[np.float64]  # 0: off

    @property
    def is_off(self) -> bool:
        """Whether no row truncates."""
        return not (self.top_k.any() or (self.top_p < 1).any() or self.min_p.any())

    def select(self, rows: Ints) -> "TruncationRows":
        """Return the parameters of some of the rows."""
        return TruncationRows(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def truncate_(weights: torch.Tensor, rows: TruncationRows) -> None:
    """Set weights [N, V] below each row's threshold to zero, in place."""
    if rows.is_off:
        return
    thresholds = rows.min_p.copy()
    undecided = np.flatnonzero((rows.top_k > 0) | (rows.top_p < 1))
    for look in (_FIRST_LOOK, _SECOND_LOOK, weights.shape[1]):
        if not len(undecided):
            break
        chosen = weights if len(undecided) == len(weights) else weights[torch.from_numpy(undecided)]
        found, is_decided = _thresholds(chosen, rows.select(undecided), min(look, weights.shape[1]))
        decided = undecided[is_decided]
        thresholds[decided] = np.maximum(thresholds[decided], found[is_decided])
        undecided = undecided[~is_decided]
    weights.masked_fill_(weights < torch.from_numpy(thresholds).float()[:, None], 0.0)


def _thresholds(
    weights: torch.Tensor, rows: TruncationRows, look: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return each row's threshold as far as its `look` largest weights tell, and whether they suffice."""
    num_rows, vocab_size = weights.shape
    top_k = np.where(rows.top_k > 0, np.minimum(rows.top_k, vocab_size), vocab_size)
    largest = _largest(weights, look)
    kth = largest[np.arange(num_rows), np.minimum(top_k, look) - 1]
    floor = np.maximum(rows.min_p, np.where(top_k <= look, kth, 0.0))
    kept = largest >= floor[:, None]
    is_all_in_sight = (largest[:, -1] < floor) | (look == vocab_size)
    masses = np.where(kept, largest, 0.0)
    cumulated = np.cumsum(masses, 1)
    totals = np.where(is_all_in_sight, cumulated[:, -1], _mass_from(weights, rows.min_p))
    # With top_p off nothing more is cut, whatever rounding says of the last tokens.
    in_nucleus = kept & (((cumulated - masses) < (rows.top_p * totals)[:, None]) | (rows.top_p >= 1)[:, None])
    is_nucleus_in_sight = (rows.top_k == 0) & (cumulated[:, -1] >= rows.top_p * totals)
    return largest[np.arange(num_rows), in_nucleus.sum(1) - 1], is_all_in_sight | is_nucleus_in_sight


def _mass_from(weights: torch.Tensor, min_p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return each row's mass of weights at or above min_p."""
    if not min_p.any():
        return weights.sum(1, dtype=torch.float64).numpy()
    floor = torch.from_numpy(min_p).float()[:, None]
    return torch.where(weights >= floor, weights, 0.0).sum(1, dtype=torch.float64).numpy()


def _largest(weights: torch.Tensor, look: int) -> npt.NDArray[np.float64]:
    """Return each row's `look` largest weights [N, look], falling.

    torch's topk is faster for few; numpy's vectorised partition and sort take half its time for thousands.
    """
    if look <= _FIRST_LOOK:
        return weights.topk(look).values.double().numpy()
    values = weights.numpy()
    found = np.partition(values, -look, axis=1)[:, -look:] if look < values.shape[1] else values
    return np.sort(found, axis=1)[:, ::-1].astype(np.float64)
