"""Parity of sampling with a vocabulary of real size: log-probabilities and masses against float64, ids against references.

An id is compared as 1 (equal) or 0: a wrong id is an error of 1.
"""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.parity_case import Case
from benchmarks.gpu_sections.sampling_inputs import SamplingInputs, sampling_inputs
from tetrad.worker_svc.kernels.argmax import argmax
from tetrad.worker_svc.kernels.draw import block_masses, draw, draw_reference
from tetrad.worker_svc.kernels.logprobs import gather_logprobs
from tetrad.worker_svc.kernels.truncation import truncate
from tetrad.worker_svc.sampler.draw import BLOCK

Pair = tuple[torch.Tensor, torch.Tensor]


def cases(bench: Bench) -> Iterator[Case]:
    """Yield the cases."""
    for num_rows, vocab_size in bench.pick([(128, 151_936), (5, 49_152)], [(2, 300)]):
        shape = f"{num_rows} x {vocab_size}"
        inputs = sampling_inputs(bench, num_rows, vocab_size, torch.float32)
        yield Case("argmax", shape, partial(_argmax, inputs))
        yield Case("gather_logprobs", shape, partial(_logprobs, inputs))
        yield Case("block_masses", shape, partial(_masses, inputs))
        yield Case("truncate", shape, partial(_truncation, inputs))
        yield Case("draw", shape, partial(_draw, inputs))


def _argmax(inputs: SamplingInputs) -> Pair:
    return _compared(argmax(inputs.logits)[0], inputs.logits.argmax(1))


def _logprobs(inputs: SamplingInputs) -> Pair:
    ids = inputs.logits.topk(5).indices.int()
    return gather_logprobs(inputs.logits, ids)[0], inputs.logits.double().log_softmax(1).gather(1, ids.long())


def _masses(inputs: SamplingInputs) -> Pair:
    _, masses = block_masses(inputs.logits, inputs.slots, inputs.temperature)
    blocks = torch.full((len(inputs.logits), masses.shape[1] * BLOCK), -torch.inf, dtype=torch.float64, device=masses.device)
    blocks[:, : inputs.logits.shape[1]] = inputs.logits
    wide = blocks.view(*masses.shape, BLOCK)
    return masses, ((wide - wide.amax(2, keepdim=True)) / inputs.temperature[:, None, None]).exp().sum(2)


def _truncation(inputs: SamplingInputs) -> Pair:
    """Return the number of ids that truncation keeps, and the exact number by sorting in float64, for top_k and top_p."""
    peaks, masses = block_masses(inputs.logits, inputs.slots, inputs.temperature)
    found = truncate(inputs.logits, peaks, masses, inputs.slots, inputs.temperature, *inputs.limits)
    logits = inputs.logits.double()
    weights = ((logits - logits.amax(1, keepdim=True)) / inputs.temperature[:, None]).exp()
    falling = weights.topk(int(inputs.top_k[0])).values
    before = falling.cumsum(1) - falling
    is_kept = before < inputs.top_p[:, None] * falling.sum(1, keepdim=True)
    # A threshold is a float32 between the smallest kept weight and the largest weight that is not kept.
    num_kept = (weights >= found.double()[:, None] * (1 - 1e-6)).sum(1)
    return num_kept.float(), is_kept.sum(1).double()


def _draw(inputs: SamplingInputs) -> Pair:
    """Compare the drawn ids with draw_reference, which uses the same noise, row by row in torch."""
    peaks, masses = block_masses(inputs.logits, inputs.slots, inputs.temperature)
    thresholds = truncate(inputs.logits, peaks, masses, inputs.slots, inputs.temperature, *inputs.limits)
    given = (inputs.logits, peaks, masses, thresholds, inputs.slots, inputs.positions, inputs.temperature, inputs.seeds)
    return _compared(draw(*given)[0], draw_reference(*given)[0])


def _compared(found: torch.Tensor, expected: torch.Tensor) -> Pair:
    """Return a vector with 1 where ids are equal and 0 elsewhere, and the expected vector of ones."""
    return (found == expected).float(), torch.ones(len(found), dtype=torch.float64, device=found.device)
