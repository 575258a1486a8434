"""transformers' `generate` in float32, batched, with prompts of equal length, so that there is no padding. See lines.py."""

import os
import sys
import time

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from benchmarks.peers.lines import answer, take_stdout


class _Clock(StoppingCriteria):  # type: ignore[misc] # mypy skips transformers
    """Records the time of each step; it never stops generation."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, _scores: object, **_: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Transformers:
    """transformers as a lines.Engine."""

    def __init__(self, path: str) -> None:
        logging.disable_progress_bar()
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Run generate and return the seconds after the first token."""
        clock = self._generate(batch, context, steps + 1)
        return clock.times[-1] - clock.times[0]

    def prefill(self, length: int) -> float:
        """Run generate for one token and return the seconds."""
        start = time.perf_counter()
        return self._generate(1, length, 1).times[0] - start

    @torch.inference_mode()
    def _generate(self, batch: int, length: int, num_tokens: int) -> _Clock:
        ids = torch.randint(1000, 41_000, (batch, length))
        clock = _Clock()
        self._model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, min_new_tokens=num_tokens,
            pad_token_id=2, stopping_criteria=StoppingCriteriaList([clock]),
        )  # fmt: skip
        return clock


def main() -> None:
    """Load the model in the directory that the first argument names, and answer requests."""
    answers = take_stdout()
    answer(Transformers(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
