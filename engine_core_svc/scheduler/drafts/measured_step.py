"""MeasuredStep: the rows and the duration of one step without prompts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step.

    Attributes:
        num_rows: tokens of requests, and drafts behind them.
        compute_s: on the worker.
        gap_s: from the result before it to its own, less that; None: it did not follow at once.
        waited: its plan was made after that result.
    """

    num_rows: int
    compute_s: float
    gap_s: float | None
    waited: bool
