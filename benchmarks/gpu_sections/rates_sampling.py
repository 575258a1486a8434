"""Rates of sampling from logits [128, 151936]: the time as a multiple of the time of reading the logits once."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.floors import Floors
from benchmarks.gpu_sections.sampling_inputs import SamplingInputs, sampling_inputs
from tetrad.worker_svc.kernels.argmax import argmax
from tetrad.worker_svc.kernels.draw import block_masses, draw
from tetrad.worker_svc.kernels.logprobs import gather_logprobs
from tetrad.worker_svc.kernels.truncation import truncate


def run(bench: Bench, floors: Floors, findings: Findings) -> None:
    """Add the table."""
    rows = []
    for num_rows, vocab_size in bench.pick([(128, 151_936), (1, 151_936)], [(2, 300)]):
        inputs = sampling_inputs(bench, num_rows, vocab_size)
        ways: dict[str, Callable[[], object]] = {
            "greedy": partial(argmax, inputs.logits),
            "temperature": partial(sample, inputs, is_cut=False),
            "top_k, top_p": partial(sample, inputs, is_cut=True),
            "greedy with logprobs": partial(greedy_logprobs, inputs),
        }
        for name, work in ways.items():
            seconds = bench.seconds([work])
            reads = seconds / floors.bytes_s(inputs.logits.nbytes)
            rows.append([name, f"{num_rows} x {vocab_size}", f"{seconds * 1e6:.1f} us", f"{reads:.1f}"])
    findings.text("Sampling, logits in bf16; reads: the time, in readings of the logits at the bandwidth.")
    findings.rows(["sampling", "logits", "time", "reads"], rows)


def sample(inputs: SamplingInputs, *, is_cut: bool) -> torch.Tensor:
    """Return a drawn token for each row; see kernels/draw.py."""
    logits, slots, temperature = inputs.logits, inputs.slots, inputs.temperature
    peaks, masses = block_masses(logits, slots, temperature)
    thresholds = torch.zeros_like(peaks[:, 0])
    if is_cut:
        thresholds = truncate(logits, peaks, masses, slots, temperature, *inputs.limits)
    return draw(logits, peaks, masses, thresholds, slots, inputs.positions, temperature, inputs.seeds)


def greedy_logprobs(inputs: SamplingInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most likely token of each row, and its log-probability."""
    return gather_logprobs(inputs.logits, argmax(inputs.logits)[0][:, None].contiguous())
