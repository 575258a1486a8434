"""Inputs of the sampling kernels: logits, and sampling parameters by slot."""

from dataclasses import dataclass

import torch

from benchmarks.gpu_sections.bench import Bench


@dataclass(frozen=True)
class SamplingInputs:
    """A batch of rows; row r is in slot r.

    Attributes:
        logits: [N, V].
        slots, positions, seeds: [N] int64.
        temperature, top_p, min_p: [N] float64.
        top_k: [N] int64.
    """

    logits: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    seeds: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @property
    def limits(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The parameters of truncation."""
        return self.top_k, self.top_p, self.min_p


def sampling_inputs(bench: Bench, num_rows: int, vocab_size: int, dtype: torch.dtype = torch.bfloat16) -> SamplingInputs:
    """Return rows of logits as peaked as those of a trained model, all with top_k 50 and top_p 0.95."""
    every = torch.arange(num_rows, device=bench.device)
    return SamplingInputs(
        logits=(bench.normal(num_rows, vocab_size) * 3).to(dtype),
        slots=every,
        positions=every + 100,
        seeds=every * 7 + 1,
        temperature=torch.full((num_rows,), 0.8, dtype=torch.float64, device=bench.device),
        top_k=torch.full((num_rows,), 50, dtype=torch.int64, device=bench.device),
        top_p=torch.full((num_rows,), 0.95, dtype=torch.float64, device=bench.device),
        min_p=torch.zeros(num_rows, dtype=torch.float64, device=bench.device),
    )
