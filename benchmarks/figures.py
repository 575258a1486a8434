"""Figures: the median of repeated measurements, with their spread."""

import statistics
from collections.abc import Sequence


# Not interpolated, unlike the percentiles of `tetrad bench`: a limit is compared with a value that was measured.
def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that the given share (0 to 1) of all values does not exceed; 0 if there are no values."""
    ranked = sorted(values)
    return ranked[min(int(len(ranked) * share), len(ranked) - 1)] if ranked else 0.0


def median(values: Sequence[float]) -> float:
    """Return the median; NaN if there are no values."""
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return "median (least to most)"."""
    if not values:
        return "-"
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return value / other for each round: both were measured shortly after each other, at the same speed of the machine."""
    return [value / other for value, other in zip(values, others, strict=True)]
