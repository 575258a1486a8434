"""Step result: from what was sampled to the answer of a plan, without the rows that failed."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import TetradError
from tetrad.worker_svc.plan import PromptLogprobs, SampledLogprobs, StepResult
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
    skipped: Iterable[int] = (),
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
    logprobs = [SampledLogprobs(handles[asked], found) for asked, found in sampled.logprobs]
    token_ids = sampled.token_ids.astype(np.uint32)
    if left_out := [*skipped, *(row for row, _ in sampled.failures)]:
        handles, token_ids = np.delete(handles, left_out), np.delete(token_ids, left_out)
    return StepResult(
        step_id=step_id,
        handles=handles,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        failures=failures,
        compute_seconds=compute_seconds,
        input_seconds=input_seconds,
    )
