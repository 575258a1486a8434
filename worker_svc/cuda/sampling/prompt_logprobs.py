"""Prompt logprobs on the device: launched with a step's logits, and read after their copy to the host.

The reading thread keeps the log-probabilities of a prompt's earlier chunks, step after step in order; the compute thread keeps
none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.worker_svc.core.result import PromptLogprobs, PromptScores
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.sampling.logprobs import TENSORS_A_GROUP, gather_candidates, read_group
from tetrad.worker_svc.kernels.logprobs import gather_logprobs
from tetrad.worker_svc.runner.prompt_logprobs import LogitsOf, PromptChunk
from tetrad.worker_svc.runner.prompt_scores import ScoredChunk


@dataclass(frozen=True, slots=True)
class LaunchedPrompts:
    """The prompt log-probabilities of a launched step, and the scores of ids at positions of its prompts."""

    tensors: Sequence[torch.Tensor] = ()
    """The tensors that have to be copied to the host for `read`."""
    chunks: Sequence[tuple[PromptChunk, int]] = ()
    """The step's chunks, and the number of pieces of each in `tensors`."""
    scored: Sequence[tuple[ScoredChunk, int]] = ()
    """The step's chunks with score ids, and the number of pieces of each in `tensors`, behind those of `chunks`."""

    def read(self, arrays: list[np.ndarray]) -> tuple[list[PromptLogprobs], list[PromptScores]]:
        """Return the log-probabilities and scores of complete prompts, from the copies of `tensors`."""
        pieces = iter([arrays[at : at + TENSORS_A_GROUP] for at in range(0, len(arrays), TENSORS_A_GROUP)])
        found = []
        for chunk, num_pieces in self.chunks:
            chunk.gathered.extend(read_group(next(pieces)) for _ in range(num_pieces))
            found.append(chunk.finish())
        scores = []
        for scored, num_pieces in self.scored:
            scored.gathered.extend(next(pieces)[1] for _ in range(num_pieces))
            scores.append(scored.finish())
        return [each for each in found if each is not None], [each for each in scores if each is not None]


def launch_prompts(
    chunks: list[PromptChunk],
    hidden: torch.Tensor,
    logits_of: LogitsOf,
    accelerator: Accelerator,
    *,
    scored: Sequence[ScoredChunk] = (),
    has_logits: bool = False,
) -> LaunchedPrompts:
    """Launch the gathering of log-probabilities of a step's prompts.

    Args:
        chunks: the step's chunks of prompts.
        hidden: [T, hidden], the step's hidden states.
        logits_of: computes logits from hidden states.
        accelerator: the device with the hidden states.
        scored: the step's chunks with score ids.
        has_logits: whether logits take the place of log-probabilities.
    """
    tensors: list[torch.Tensor] = []
    counts = []
    for chunk in chunks:
        before = len(tensors)
        for piece, followers in chunk.pieces():
            actual = accelerator.upload(followers.astype(np.int32))
            logits = logits_of(hidden[piece], chunk.slot)
            tensors += gather_candidates(logits, actual, chunk.num_top, has_logits=has_logits)
        counts.append((len(tensors) - before) // TENSORS_A_GROUP)
    of_scores = []
    for scores in scored:
        before = len(tensors)
        for piece, ids in scores.pieces():
            logits, known = logits_of(hidden[piece], scores.slot), accelerator.upload(np.maximum(ids, 0).astype(np.int32))
            tensors += [known, *gather_logprobs(logits, known, has_logits=has_logits)]
        of_scores.append((len(tensors) - before) // TENSORS_A_GROUP)
    return LaunchedPrompts(tensors, list(zip(chunks, counts, strict=True)), list(zip(scored, of_scores, strict=True)))
