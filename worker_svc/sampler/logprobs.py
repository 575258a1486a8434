"""Logprobs: gathers the log-probabilities that a request asked for from the raw distribution."""

import numpy as np
import torch

from tetrad.worker_svc.plan import Ints, LogprobRows

WHOLE_VOCABULARY = -1


def gather_logprobs(logprobs: torch.Tensor, actual: Ints, num_top: int) -> LogprobRows:
    """Return the rows' log-probabilities: the actual token first, then the `num_top` most likely ones.

    Args:
        logprobs: [P, V] float32.
        actual: [P], the sampled (for a prompt: the actual) tokens.
        num_top: WHOLE_VOCABULARY means all.
    """
    vocab_size = logprobs.shape[1]
    ids = torch.from_numpy(actual)[:, None]
    chosen = logprobs.gather(1, ids)
    ranks = (logprobs > chosen).sum(1) + 1
    top = logprobs.topk(vocab_size if num_top == WHOLE_VOCABULARY else min(num_top, vocab_size))
    return LogprobRows(
        token_ids=torch.cat([ids, top.indices], 1).numpy().astype(np.uint32),
        logprobs=torch.cat([chosen, top.values], 1).numpy(),
        ranks=ranks.numpy().astype(np.uint32),
    )


def widest(counts: list[int]) -> int:
    """Return the count that covers all: one width serves every row of a message."""
    return WHOLE_VOCABULARY if WHOLE_VOCABULARY in counts else max(counts)
