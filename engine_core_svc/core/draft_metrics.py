"""Draft metrics: the numbers of drafted and accepted tokens of one request, as vLLM's RequestSpecDecodeMetrics counts them.

A request has them if the engine core measures single requests (--per-request-spec-decode-metrics), and its last output brings
them. They last as long as the request: a preemption, or the loss of a worker, does not begin them anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["none", "summary", "detailed"]


@dataclass(slots=True)
class DraftMetrics:
    """The steps in which the drafts of a request were verified.

    Attributes:
        histogram: number of steps that accepted 0, 1, ... drafts; up to the largest number of drafts of a step.
        num_draft_tokens: number of verified drafts.
        per_step: for each step the number of accepted and of verified drafts; None: only the sums are kept.
    """

    histogram: list[int]
    num_draft_tokens: int = 0
    per_step: list[tuple[int, int]] | None = field(default=None)

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """Count a step."""
        self.histogram[num_accepted] += 1
        self.num_draft_tokens += num_drafts
        if self.per_step is not None:
            self.per_step.append((num_accepted, num_drafts))


MakeMetrics = Callable[[], DraftMetrics]
"""Returns the metrics of a new request."""


def metrics_of_level(level: Level, max_tokens: int) -> MakeMetrics | None:
    """Return a function that makes the metrics of each new request; None: requests have none.

    `max_tokens`: maximum number of drafts of a request in a step.
    """
    if level == "none":
        return None
    return lambda: DraftMetrics([0] * (max_tokens + 1), per_step=[] if level == "detailed" else None)
