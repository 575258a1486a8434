"""Reference: transformers' log-probabilities of a runner's tokens, in float32 on the same weights.

Every token is compared after the prompt and the runner's own earlier tokens, so that a different choice between two almost
equally likely tokens does not make all later tokens count as wrong.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.result import ModelRunnerOutput


@dataclass(frozen=True)
class Judged:
    """The comparison of a runner's outputs with the reference.

    Attributes:
        num_tokens: number of output tokens.
        num_other: number of tokens that differ from the reference's most likely token.
        worst_gap: largest difference between the reference's log-probabilities of its most likely token and of the runner's.
        worst_error: largest difference between the log-probabilities of a token in the reference and in the runner.
        peer_error: the same for the peer; 0 without a peer.
    """

    num_tokens: int
    num_other: int
    worst_gap: float
    worst_error: float
    peer_error: float = 0.0


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


def judge(model: Any, prompts: Sequence[Ints], found: Generated, peer: Any = None) -> Judged:
    """Compare greedily generated outputs with the model's log-probabilities of the same tokens.

    Args:
        model: the reference, in float32.
        prompts: token ids of each request.
        found: the outputs of each request.
        peer: the same model of transformers in the runner's type; its error is measured as well; None: no peer.
    """
    gaps, errors, peer_errors = [], [], [np.zeros(1)]
    for prompt, token_ids, logprobs in zip(prompts, found.token_ids, found.logprobs, strict=True):
        given, rows = [*prompt.tolist(), *token_ids[:-1]], np.arange(len(token_ids))
        expected = _logprobs(model, given, len(token_ids))
        taken = expected[rows, token_ids]
        gaps.append(expected.max(1) - taken)
        errors.append(np.abs(taken - logprobs))
        if peer is not None:
            peer_errors.append(np.abs(taken - _logprobs(peer, given, len(token_ids))[rows, token_ids]))
    gap, error, peer_error = map(np.concatenate, (gaps, errors, peer_errors))
    return Judged(len(gap), int((gap > 0).sum()), float(gap.max()), float(error.max()), float(peer_error.max()))


@torch.inference_mode()
def _logprobs(model: Any, token_ids: list[int], count: int) -> np.ndarray:
    """Return the log-probabilities [count, V] of the next token after each of the last `count` tokens."""
    device = next(model.parameters()).device
    logits = model(torch.tensor([token_ids], device=device), logits_to_keep=count).logits[0]
    return np.asarray(logits.double().log_softmax(-1).cpu())
