"""Step result: builds the result of a plan from the sampled tokens.

A failed request is answered only with its error: the engine core treats a further token or answer as a fault.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import TetradError
from tetrad.worker_svc.core.plan import DraftTokens
from tetrad.worker_svc.core.result import ModelRunnerOutput, Pooled, PromptLogprobs, PromptScores, SampledLogprobs
from tetrad.worker_svc.sampler.sampler import Sampled


def step_result(
    step_id: int,
    handles: npt.NDArray[np.uint32],
    sampled: Sampled,
    *,
    failures: Sequence[tuple[int, TetradError]],
    prompt_logprobs: Sequence[PromptLogprobs],
    prompt_scores: Sequence[PromptScores] = (),
    pooled: Sequence[Pooled] = (),
    compute_seconds: float,
    draft_seconds: float = 0.0,
    input_seconds: float,
    has_drafts: bool = False,
    proposals: DraftTokens | None = None,
    skipped: Iterable[int] = (),
) -> ModelRunnerOutput:
    """Return the result of a step.

    Args:
        step_id: the plan's step id.
        handles: [R], handles of the rows that sampled; with drafts, a request can have several rows.
        sampled: the sampled token of each row.
        failures: errors of all failed requests, also of those in these rows.
        prompt_logprobs, prompt_scores, pooled, compute_seconds, draft_seconds: see ModelRunnerOutput.
        input_seconds, has_drafts, proposals: likewise.
        skipped: rows of requests that have failed in an earlier step.
    """
    logprobs = [SampledLogprobs(handles[asked], found) for asked, found in sampled.logprobs]
    token_ids = sampled.token_ids.astype(np.uint32)
    if left_out := {*(handle for handle, _ in failures), *(int(handles[row]) for row in skipped)}:
        stays = ~np.isin(handles, list(left_out))
        handles, token_ids = handles[stays], token_ids[stays]
        logprobs = [rest for group in logprobs if len((rest := group.without(left_out)).handles)]
        prompt_logprobs = [each for each in prompt_logprobs if each.handle not in left_out]
        prompt_scores = [each for each in prompt_scores if each.handle not in left_out]
    return ModelRunnerOutput(
        step_id=step_id,
        handles=handles,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        prompt_scores=prompt_scores,
        pooled=pooled,
        failures=failures,
        compute_seconds=compute_seconds,
        draft_seconds=draft_seconds,
        input_seconds=input_seconds,
        has_drafts=has_drafts,
        proposals=proposals,
    )
