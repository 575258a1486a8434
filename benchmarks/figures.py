"""Figures: the median of repeated measurements, with their spread."""

import statistics
from collections.abc import Sequence


# Not interpolated as those of `tetrad bench`: a bar is held against a value that was measured.
def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all values does not exceed; 0 if there are none."""
    ranked = sorted(values)
    return ranked[min(int(len(ranked) * share), len(ranked) - 1)] if ranked else 0.0


def median(values: Sequence[float]) -> float:
    """Return the median; NaN of nothing."""
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return "median (least to most)"."""
    if not values:
        return "-"
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return value / other of each round: both are from the same minute of the machine."""
    return [value / other for value, other in zip(values, others, strict=True)]
