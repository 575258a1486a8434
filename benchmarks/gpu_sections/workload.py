"""Workloads: requests with fixed numbers of input and output tokens, and numbers of concurrent requests.

The sections of runner, stack and transformers run the same workloads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpu_sections.bench import Bench

Rates = Mapping[int, float]
"""Number of concurrent requests -> output tokens per second; the time includes the prompts."""


@dataclass(frozen=True)
class Workload:
    """Random prompts of one length, and answers of one length.

    Attributes:
        prompt_len: number of prompt tokens.
        output_len: number of output tokens; no token ends an answer earlier.
    """

    prompt_len: int
    output_len: int

    @property
    def length(self) -> int:
        """Maximum number of tokens of a request."""
        return self.prompt_len + self.output_len


def kinds(bench: Bench) -> Mapping[str, str]:
    """Return form of the weights -> its quantization."""
    return bench.pick({"bf16": "", "fp8": "fp8"}, {"tiny": ""})


def promised(bench: Bench) -> tuple[Workload, list[int]]:
    """Return the workload of the required results (bars.py), and its numbers of concurrent requests."""
    return Workload(*bench.pick((128, 1024), (8, 4))), bench.pick([1, 8, 32, 128], [2])


def compared(bench: Bench) -> tuple[Workload, int]:
    """Return the shorter workload for the comparison with transformers, and its number of concurrent requests."""
    return Workload(*bench.pick((128, 256), (8, 3))), bench.pick(32, 2)
