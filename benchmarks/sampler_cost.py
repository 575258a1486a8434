"""Sampler cost: a decode step of 64 rows with 64 different sampling parameters, against 64 rows with a temperature only.

Two runners with the same weights, prompts and contexts run their steps alternately. The figures are the medians of the whole
decode step and of the sampler alone. The mixed batch has every parameter: temperature, top_p, top_k, min_p, penalties,
logit_bias, bad words, allowed ids, min_tokens and seeds; all rows have 5 logprobs.

    python -m benchmarks.sampler_cost [--steps 60]
    python -m benchmarks.sampler_cost --kind top_p        this parameter in all 64 rows
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np

from tetrad.services.hub.model_files import resolve_model
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import CachedRequests, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.devices import open_device

if TYPE_CHECKING:
    # This module imports torch, so it must be imported after the device has set the number of threads.
    from tetrad.worker_svc.runner.model_runner import ModelRunner

MODEL = "smollm2-135m-instruct"
NUM_ROWS = 64
PROMPT_LEN = 32
BLOCK_SIZE = 16


def plain(row: int) -> SamplingSpec:
    """Return the parameters of a plain request, with which others are compared."""
    return SamplingSpec(temperature=0.8, seed=row)


Given = ParamSpec("Given")
Result = TypeVar("Result")

KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "top_p": lambda row: {"top_p": 0.8 + 0.003 * row},
    "top_k": lambda row: {"top_k": 5 + row * 3},
    "min_p": lambda row: {"min_p": 0.01 + row / 1000},
    "top_p_and_top_k": lambda row: {"top_p": 0.9, "top_k": 20 + row},
    "penalties": lambda row: {"presence_penalty": 0.3, "frequency_penalty": row / 100, "repetition_penalty": 1.05},
    "logit_bias": lambda row: {"logit_bias": {1000 + 7 * row + i: 1.5 for i in range(20)}},
    "bad_words": lambda row: {"bad_words": tuple((500 + row, 700 + i) if i % 2 else (700 + i,) for i in range(20))},
    "allowed_token_ids": lambda row: {"allowed_token_ids": tuple(range(row, 20_000, 3))},
    "min_tokens": lambda row: {"min_tokens": 500 + row, "stop_token_ids": (2, 100 + row)},
    "logprobs": lambda _: {"num_logprobs": 5},
}


def mixed(row: int) -> SamplingSpec:
    """Return the parameters of one of 64 rows: four kinds of parameters and logprobs. No two rows are equal."""
    kinds = [kind for kind in KINDS if kind != "logprobs"]
    fields: dict[str, Any] = {"temperature": 0.5 + row / 100, "seed": row, "num_logprobs": 5}
    for step in range(4):
        fields |= KINDS[kinds[(row + 2 * step) % len(kinds)]](row)
    return SamplingSpec(**fields)


def only(kind: str) -> Callable[[int], SamplingSpec]:
    """Return a function that returns the parameters of a row with only this kind of parameter."""
    return lambda row: SamplingSpec(**{"temperature": 0.8, "seed": row, **KINDS[kind](row)})


@dataclass(frozen=True)
class Cost:
    """Median milliseconds of a decode step of 64 rows, and of the sampler within it."""

    step: float
    sampler: float


class DecodeBatch:
    """64 requests that decode, and the durations of their steps."""

    def __init__(self, runner: "ModelRunner[Any]", prompts: list[list[int]], sampling: Callable[[int], SamplingSpec]) -> None:
        self._runner = runner
        self._computed = np.array([len(prompt) for prompt in prompts])
        self._step_id = 0
        self._steps: list[float] = []
        self._samplings: list[float] = []
        self._watch_sampler()
        self._execute(self._new(prompts, sampling), _NONE)

    def step(self) -> None:
        """Run one decode step and record its duration."""
        ones = np.ones(len(self._computed), np.int64)
        handles = np.arange(len(self._computed))
        started = time.perf_counter()
        self._execute([], CachedRequests(handles, ones, self._computed.copy(), 0 * ones, np.empty(0, np.int64)))
        self._steps.append(time.perf_counter() - started)
        self._computed += 1

    def cost(self, skip: int) -> Cost:
        """Return the median durations, without the first `skip` steps."""
        steps, samplings = self._steps[skip:], self._samplings[skip + 1 :]
        return Cost(1e3 * statistics.median(steps), 1e3 * statistics.median(samplings))

    def _execute(self, new: list[NewRequest], cached: CachedRequests) -> None:
        self._step_id += 1
        result = finished(self._runner.execute(SchedulerOutput(self._step_id, new, cached)))
        assert len(result.handles) == len(self._computed), result.failures

    def _new(self, prompts: list[list[int]], sampling: Callable[[int], SamplingSpec]) -> list[NewRequest]:
        num_blocks = (self._runner.layout.num_blocks - 1) // len(prompts)
        return [
            NewRequest(
                handle=row,
                request_id=str(row),
                token_ids=np.array(prompt),
                num_prompt_tokens=len(prompt),
                num_computed_tokens=0,
                num_scheduled_tokens=len(prompt),
                block_ids=1 + np.arange(row * num_blocks, (row + 1) * num_blocks)[None],
                sampling=sampling(row),
                eos_token_id=2,
            )
            for row, prompt in enumerate(prompts)
        ]

    def _watch_sampler(self) -> None:
        sampler = self._runner.sampler
        sampler.sample = _timed(sampler.sample, self._samplings)  # type: ignore[method-assign] # measured from outside


def _timed(function: Callable[Given, Result], seconds: list[float]) -> Callable[Given, Result]:
    """Return a function that calls `function` and appends the duration of each call to `seconds`."""

    def timed(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        started = time.perf_counter()
        result = function(*args, **kwargs)
        seconds.append(time.perf_counter() - started)
        return result

    return timed


def measure(kinds: list[Callable[[int], SamplingSpec]], num_steps: int, num_threads: int) -> list[Cost]:
    """Return the cost of each kind of parameters; the kinds are measured alternately, step by step."""
    path = resolve_model(MODEL)
    device = open_device(WorkerSettings(device="cpu", threads=num_threads))
    device.set_up()
    model = device.load_model(LoadRequest(MODEL, path), lambda *_: None)
    per_row = -(-(PROMPT_LEN + num_steps + 1) // BLOCK_SIZE)
    layout = KvLayout(1 + NUM_ROWS * per_row, BLOCK_SIZE, per_row * BLOCK_SIZE, NUM_ROWS, NUM_ROWS * PROMPT_LEN)
    prompts = text_prompts()
    batches = [DecodeBatch(cast("ModelRunner[Any]", model.make_runner(layout)), prompts, kind) for kind in kinds]
    for _ in range(num_steps):
        for batch in batches:
            batch.step()
    return [batch.cost(skip=num_steps // 5) for batch in batches]


def text_prompts() -> list[list[int]]:
    """Return the token ids of 64 pieces of a real text, because the size of a top_p nucleus depends on the text."""
    root = Path(__file__).parent.parent
    text = (root / "ARCHITECTURE.md").read_text() + (root / "README.md").read_text()
    ids = list(load_tokenizer(MODEL).encode(text))
    starts = [i * (len(ids) - PROMPT_LEN) // NUM_ROWS for i in range(NUM_ROWS)]
    return [ids[start : start + PROMPT_LEN] for start in starts]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kind", choices=["mixed", "all", *KINDS], default="mixed")
    args = parser.parse_args()
    names = list(KINDS) if args.kind == "all" else [args.kind]
    ways = [plain, *(mixed if name == "mixed" else only(name) for name in names)]
    base, *costs = measure(ways, args.steps, args.threads)
    print(f"{'64 rows':18} {'step ms':>8} {'ratio':>6} {'sampler ms':>11} {'ratio':>6}")
    for name, cost in zip(["plain", *names], [base, *costs], strict=True):
        ratios = cost.step / base.step, cost.sampler / base.sampler
        print(f"{name:18} {cost.step:8.1f} {ratios[0]:6.2f} {cost.sampler:11.2f} {ratios[1]:6.2f}")


_NONE = CachedRequests(*(np.empty(0, np.int64) for _ in range(5)))


if __name__ == "__main__":
    main()
