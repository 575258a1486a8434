"""MeasuredStep: the rows and the duration of one step without prompts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The measured rows and times of one step.

    Attributes:
        num_rows: number of tokens of requests and of drafts after them.
        compute_s: seconds of computation on the worker.
        gap_s: seconds from the previous result to this one, less `compute_s`; None: the step did not directly follow.
        waited: whether its plan was made after the previous result.
        asks: whether its plan asks the worker for proposals.
    """

    num_rows: int
    compute_s: float
    gap_s: float | None
    waited: bool
    asks: bool = False
