"""Workloads: requests of one length in and one out, and how many at a time. Runner, stack and transformers run the same."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpu_sections.bench import Bench

Rates = Mapping[int, float]
"""Requests at a time -> output tokens per second, prompts included in the time."""


@dataclass(frozen=True)
class Workload:
    """Random prompts of one length, and answers of one.

    Attributes:
        prompt_len: tokens in.
        output_len: tokens out, whatever they are.
    """

    prompt_len: int
    output_len: int

    @property
    def length(self) -> int:
        """Maximum number of tokens of a request."""
        return self.prompt_len + self.output_len


def kinds(bench: Bench) -> Mapping[str, str]:
    """Return forms of the weights -> the quantization that makes them."""
    return bench.pick({"bf16": "", "fp8": "fp8"}, {"tiny": ""})


def promised(bench: Bench) -> tuple[Workload, list[int]]:
    """Return the workload that bars are about, and its sizes."""
    return Workload(*bench.pick((128, 1024), (8, 4))), bench.pick([1, 8, 32, 128], [2])


def compared(bench: Bench) -> tuple[Workload, int]:
    """Return the shorter one on which we are compared with transformers, and its size."""
    return Workload(*bench.pick((128, 256), (8, 3))), bench.pick(32, 2)
