"""Reference: transformers' log-probabilities of a runner's tokens, in float32 on the same weights.

Every token is compared after the prompt and the runner's own earlier tokens, so that a different choice between two almost
equally likely tokens does not make all later tokens count as wrong.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, ModelRunnerOutput


@dataclass(frozen=True)
class Judged:
    """The comparison of a runner's outputs with the reference.

    Attributes:
        num_tokens: number of output tokens.
        num_other: number of tokens that differ from the reference's most likely token.
        worst_gap: largest difference between the reference's log-probabilities of its most likely token and of the runner's.
        worst_error: largest difference between the log-probabilities of a token in the reference and in the runner.
    """

    num_tokens: int
    num_other: int
    worst_gap: float
    worst_error: float


@dataclass(frozen=True)
class Generated:
    """The tokens that a runner sampled for each request, and their log-probabilities."""

    token_ids: list[list[int]]
    logprobs: list[list[float]]


def generated(results: Iterable[ModelRunnerOutput], num_requests: int) -> Generated:
    """Return the outputs of requests whose sampling parameters ask for the log-probabilities of sampled tokens."""
    found = Generated([[] for _ in range(num_requests)], [[] for _ in range(num_requests)])
    for result in results:
        for group in result.logprobs:
            for row, handle in enumerate(group.handles.tolist()):
                found.token_ids[handle].append(int(group.rows.token_ids[row, 0]))
                found.logprobs[handle].append(float(group.rows.logprobs[row, 0]))
    return found


def judge(model: Any, prompts: Sequence[Ints], found: Generated) -> Judged:
    """Compare greedily generated outputs with the model's log-probabilities of the same tokens."""
    gaps, errors = [], []
    for prompt, token_ids, logprobs in zip(prompts, found.token_ids, found.logprobs, strict=True):
        expected = _logprobs(model, [*prompt.tolist(), *token_ids[:-1]], len(token_ids))
        taken = expected[np.arange(len(token_ids)), token_ids]
        gaps.append(expected.max(1) - taken)
        errors.append(np.abs(taken - logprobs))
    gap, error = np.concatenate(gaps), np.concatenate(errors)
    return Judged(len(gap), int((gap > 0).sum()), float(gap.max()), float(error.max()))


@torch.inference_mode()
def _logprobs(model: Any, token_ids: list[int], count: int) -> np.ndarray:
    """Return the log-probabilities [count, V] of the next token after each of the last `count` tokens."""
    device = next(model.parameters()).device
    logits = model(torch.tensor([token_ids], device=device), logits_to_keep=count).logits[0]
    return np.asarray(logits.double().log_softmax(-1).cpu())
