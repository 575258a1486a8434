"""Result of one step, as plain values, and the interface of the component that executes plans.

A runner returns results; wire.py encodes them. Knows nothing of protobuf or of a device. Columns are numpy arrays whose rows
belong together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import TetradError
from tetrad.worker_svc.core.plan import DraftTokens, Floats, SchedulerOutput


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Log-probabilities of P positions with W candidates each; column 0 is the sampled token, or the prompt's own token."""

    token_ids: npt.NDArray[np.uint32]  # [P, W]
    logprobs: Floats  # [P, W]
    ranks: npt.NDArray[np.uint32]  # [P], 1 = most likely

    def select(self, positions: npt.NDArray[np.bool_]) -> "LogprobRows":
        """Return the rows where `positions` [P] is true."""
        return LogprobRows(self.token_ids[positions], self.logprobs[positions], self.ranks[positions])


def join_rows(parts: Sequence[LogprobRows]) -> LogprobRows:
    """Concatenate the positions of all parts, which have the same width."""
    return LogprobRows(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class SampledLogprobs:
    """Log-probabilities of the tokens sampled for `handles`: one row per handle, all of the same width."""

    handles: npt.NDArray[np.uint32]
    rows: LogprobRows

    def without(self, handles: Collection[int]) -> "SampledLogprobs":
        """Return a copy without the rows of these requests."""
        stays = ~np.isin(self.handles, list(handles))
        return SampledLogprobs(self.handles[stays], self.rows.select(stays))


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of a prompt's tokens from position `start` on."""

    handle: int
    start: int
    rows: LogprobRows


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of a request's score ids [rows, W] at positions of its prompt; see ScoreIds."""

    handle: int
    scores: Floats


@dataclass(frozen=True, slots=True)
class Pooled:
    """The answer to a pooling request: [width], or [tokens, width] for the tasks with one answer per token."""

    handle: int
    values: Floats


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """The result of a step: one token for each of `handles`, and the answers to pooling requests.

    With drafts, the handle of a request can appear several times; its tokens are in order.
    """

    step_id: int
    handles: npt.NDArray[np.uint32]
    token_ids: npt.NDArray[np.uint32]
    logprobs: Sequence[SampledLogprobs] = ()
    prompt_logprobs: Sequence[PromptLogprobs] = ()
    prompt_scores: Sequence[PromptScores] = ()
    pooled: Sequence[Pooled] = ()
    failures: Sequence[tuple[int, TetradError]] = ()
    compute_seconds: float = 0.0
    draft_seconds: float = 0.0
    """The part of `compute_seconds` in which a draft model or a draft head computed."""
    input_seconds: float = 0.0
    has_drafts: bool = False
    proposals: DraftTokens | None = None
    """Draft tokens for the next step, proposed by a worker with a draft model."""


class PendingStep(Protocol):
    """A step that is queued on the device; the next step can be queued before this one ends."""

    def wait(self) -> ModelRunnerOutput:
        """Wait for the step and return its output; never called on the runner's thread. Raises the errors of Runner.execute."""


class StagedStep(ABC):
    """A step that passes through the stages of a pipeline.

    Attributes:
        result: the step's output, or the error that Runner.execute would have raised. A later step may set it.
    """

    result: Future[ModelRunnerOutput]

    @abstractmethod
    def arrive(self) -> None:
        """Wait until the step has passed the last stage; never called on the runner's thread."""

    @abstractmethod
    def complete(self) -> None:
        """Set the result of this step and of the steps before it; on the runner's thread. Waits as `arrive` does."""


ExecutedStep = ModelRunnerOutput | PendingStep | StagedStep


def finished(step: ExecutedStep) -> ModelRunnerOutput:
    """Wait for a step and return its output; for callers on the runner's thread that have no other work meanwhile."""
    if isinstance(step, StagedStep):
        step.complete()
        return step.result.result()
    return step if isinstance(step, ModelRunnerOutput) else step.wait()


class Runner(Protocol):
    """Executes plans in the order of the calls. Owned by the compute thread."""

    def execute(self, plan: SchedulerOutput) -> ExecutedStep:
        """Run one step, or queue it on the device; any exception means that the device can no longer be used."""

    def forget_all(self) -> None:
        """Delete the state of every request; the handles can then be used again."""

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy work that makes the first real step fast; call `report(completed, total)` after each part."""

    @property
    def num_requests(self) -> int:
        """The number of requests whose state the runner keeps; safe to read on any thread."""
