"""Prompt logprobs on the device: launched with a step's logits, and read after their copy to the host.

The reading thread keeps the log-probabilities of a prompt's earlier chunks, step after step in order; the compute thread keeps
none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.worker_svc.core.plan import PromptLogprobs
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.sampling.logprobs import TENSORS_A_GROUP, gather_candidates, read_group
from tetrad.worker_svc.runner.prompt_logprobs import LogitsOf, PromptChunk


@dataclass(frozen=True, slots=True)
class LaunchedPrompts:
    """The prompt log-probabilities of a launched step."""

    tensors: Sequence[torch.Tensor] = ()
    """The tensors that have to be copied to the host for `read`."""
    chunks: Sequence[tuple[PromptChunk, int]] = ()
    """The step's chunks, and the number of pieces of each in `tensors`."""

    def read(self, arrays: list[np.ndarray]) -> list[PromptLogprobs]:
        """Return the log-probabilities of complete prompts, from the copies of `tensors`."""
        pieces = iter([arrays[at : at + TENSORS_A_GROUP] for at in range(0, len(arrays), TENSORS_A_GROUP)])
        found = []
        for chunk, num_pieces in self.chunks:
            chunk.gathered.extend(read_group(next(pieces)) for _ in range(num_pieces))
            found.append(chunk.finish())
        return [each for each in found if each is not None]


def launch_prompts(
    chunks: list[PromptChunk],
    hidden: torch.Tensor,
    logits_of: LogitsOf,
    accelerator: Accelerator,
    *,
    has_logits: bool = False,
) -> LaunchedPrompts:
    """Launch the gathering of log-probabilities of a step's prompts.

    Args:
        chunks: the step's chunks of prompts.
        hidden: [T, hidden], the step's hidden states.
        logits_of: computes logits from hidden states.
        accelerator: the device with the hidden states.
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
    return LaunchedPrompts(tensors, list(zip(chunks, counts, strict=True)))
