"""Step result: from what was sampled to the answer of a plan, without the rows that failed."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import TetradError
from tetrad.worker_svc.plan import Ints, PromptLogprobs, SampledLogprobs, StepResult
from tetrad.worker_svc.sampler.sampler import Sampled


def step_result(
    step_id: int,
    handles: npt.NDArray[np.uint32],
    sampled: Sampled,
    *,
    failures: Sequence[tuple[int, TetradError]],
    prompt_logprobs: Sequence[PromptLogprobs],
    compute_seconds: float,
    input_seconds: float,
    skipped: Ints = np.empty(0, np.int64),  # noqa: B008 - never written
) -> StepResult:
    """Return a plan's answer.

    Args:
        step_id: of the plan.
        handles: [R], of the rows that sampled.
        sampled: what each got; rows that failed are left out.
        failures: of requests, these rows' included.
        prompt_logprobs, compute_seconds, input_seconds: see StepResult.
        skipped: further rows to leave out.
    """
    left_out = np.union1d(skipped, np.array([row for row, _ in sampled.failures], np.int64))
    logprobs = [SampledLogprobs(handles[asked], found) for asked, found in sampled.logprobs]
    return StepResult(
        step_id=step_id,
        handles=np.delete(handles, left_out),
        token_ids=np.delete(sampled.token_ids.astype(np.uint32), left_out),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        failures=failures,
        compute_seconds=compute_seconds,
        input_seconds=input_seconds,
    )
