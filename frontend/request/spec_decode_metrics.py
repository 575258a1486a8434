"""RequestSpecDecodeMetrics: how many drafts of one output were verified and accepted; vLLM's class of this name.

Public Python type. An engine core sends it with an output's end if it measures single requests. Knows sums; knows no proposers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RequestSpecDecodeMetrics:
    """The steps in which drafts of an output were verified.

    Attributes:
        num_spec_tokens: most drafts of a step.
        histogram: number of steps that accepted 0, 1, ... num_spec_tokens drafts.
        num_draft_tokens: number of verified drafts.
        per_step_accepted, per_step_drafted: for each step the number of accepted and of verified drafts; empty: only sums.
    """

    num_spec_tokens: int
    histogram: list[int] = field(default_factory=list)
    num_draft_tokens: int = 0
    per_step_accepted: list[int] = field(default_factory=list)
    per_step_drafted: list[int] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return sum(self.histogram)

    @property
    def num_accepted(self) -> int:
        """The number of accepted drafts."""
        return sum(accepted * number for accepted, number in enumerate(self.histogram))

    def to_dict(self) -> dict[str, Any]:
        """Return vLLM's object `speculative_decoding` of an answer's `metrics`."""
        steps, accepted, drafted = self.num_steps, self.num_accepted, self.num_draft_tokens
        shown: dict[str, Any] = {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": list(self.histogram),
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": self.num_spec_tokens,
        }
        if self.per_step_accepted:
            shown["per_step_accepted"] = list(self.per_step_accepted)
            shown["per_step_drafted"] = list(self.per_step_drafted)
        return shown


def summed(metrics: Iterable[RequestSpecDecodeMetrics]) -> RequestSpecDecodeMetrics | None:
    """Return the metrics of several outputs together, with the steps one output after another; None if there are none."""
    found = list(metrics)
    if not found:
        return None
    most = max(each.num_spec_tokens for each in found)
    rows = [each.histogram + [0] * (most + 1 - len(each.histogram)) for each in found]
    return RequestSpecDecodeMetrics(
        most,
        [sum(column) for column in zip(*rows, strict=True)],
        sum(each.num_draft_tokens for each in found),
        [accepted for each in found for accepted in each.per_step_accepted],
        [drafted for each in found for drafted in each.per_step_drafted],
    )
