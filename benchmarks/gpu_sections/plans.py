"""Plans: plans of a batch of requests, as the engine core would make them, to drive a runner alone.

All prompts run first, in chunks; then every request decodes one token per step. Requests get blocks alternately, so that no
request's blocks are contiguous. Two steps are in flight, as in the stack: a plan does not need the tokens that the previous
step sampled.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from benchmarks.gpu_sections.model import BLOCK_SIZE
from tetrad.worker_svc.core.plan import CachedRequests, Ints, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.result import ModelRunnerOutput, PendingStep

GREEDY = SamplingSpec(temperature=0.0)
_IN_FLIGHT = 2


class Executor(Protocol):
    """A runner, or a wrapper of a runner."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | PendingStep:
        """Run one step and return its result, or queue the step and return a handle."""


class Batch:
    """A batch of requests that begin and end together.

    Args:
        prompts: token ids of each request; request r has handle r.
        sampling: parameters of each request, or one for all.
        max_num_batched_tokens: maximum number of tokens of a step.
    """

    def __init__(
        self,
        prompts: Sequence[Ints],
        sampling: SamplingSpec | Sequence[SamplingSpec] = GREEDY,
        *,
        max_num_batched_tokens: int = 8192,
    ) -> None:
        self._prompts = prompts
        self._sampling = [sampling] * len(prompts) if isinstance(sampling, SamplingSpec) else sampling
        self._most = max_num_batched_tokens
        self._computed = np.zeros(len(prompts), np.int64)
        self._num_blocks = np.zeros(len(prompts), np.int64)
        self._step_id = 0

    def prefill_plans(self) -> Iterator[SchedulerOutput]:
        """Yield the plans of the prompts; long prompts are divided into chunks, and the last chunk samples the first token."""
        scheduled: list[tuple[int, int]] = []
        room = self._most
        for row, prompt in enumerate(self._prompts):
            done = 0
            while done < len(prompt):
                count = min(len(prompt) - done, room)
                scheduled.append((row, count))
                done, room = done + count, room - count
                if not room:
                    yield self._plan(scheduled)
                    scheduled, room = [], self._most
        if scheduled:
            yield self._plan(scheduled)

    def decode_plans(self, steps: int) -> Iterator[SchedulerOutput]:
        """Yield the plans of `steps` steps in which every request decodes one token."""
        for _ in range(steps):
            yield self._plan([], decoding=np.arange(len(self._prompts)))

    def _plan(self, scheduled: Sequence[tuple[int, int]], decoding: Ints | None = None) -> SchedulerOutput:
        new = [self._new(row, count) for row, count in scheduled if not self._computed[row]]
        old = [(row, count) for row, count in scheduled if self._computed[row]]
        rows = np.array([row for row, _ in old], np.int64) if decoding is None else decoding
        counts = np.array([count for _, count in old], np.int64) if decoding is None else np.ones(len(rows), np.int64)
        cached = self._cached(rows, counts)
        for request in new:
            self._computed[request.handle] = request.num_scheduled_tokens
        self._step_id += 1
        return SchedulerOutput(self._step_id, new, cached)

    def _new(self, row: int, count: int) -> NewRequest:
        [needed] = self._needed(np.array([row]), np.array([count]))
        prompt = self._prompts[row]
        return NewRequest(
            handle=row,
            request_id=str(row),
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            num_scheduled_tokens=count,
            block_ids=self._deal(np.array([row]), np.array([needed])),
            sampling=self._sampling[row],
        )

    def _cached(self, rows: Ints, counts: Ints) -> CachedRequests:
        needed = self._needed(rows, counts)
        columns = CachedRequests(
            handles=rows,
            num_scheduled_tokens=counts,
            num_computed_tokens=self._computed[rows],
            num_new_blocks=needed,
            new_block_ids=self._deal(rows, needed),
        )
        self._computed[rows] += counts
        return columns

    def _needed(self, rows: Ints, counts: Ints) -> Ints:
        """Return the number of blocks that each request needs in addition for `counts` more tokens."""
        return np.asarray(-(-(self._computed[rows] + counts) // BLOCK_SIZE) - self._num_blocks[rows])

    def _deal(self, rows: Ints, needed: Ints) -> Ints:
        """Return new blocks, request after request: the n-th block of request r is 1 + n * requests + r."""
        owner = np.repeat(rows, needed)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(needed) - needed, needed) + self._num_blocks[owner]
        self._num_blocks[rows] += needed
        return np.asarray(1 + place * len(self._prompts) + owner)[None]


def run_plans(runner: Executor, plans: Iterable[SchedulerOutput]) -> list[ModelRunnerOutput]:
    """Run plans with two in flight, and return their results; RuntimeError if a request failed."""
    pending: deque[ModelRunnerOutput | PendingStep] = deque()
    results = []
    for plan in plans:
        pending.append(runner.execute(plan))
        if len(pending) == _IN_FLIGHT:
            results.append(_result(pending.popleft()))
    return [*results, *map(_result, pending)]


def outputs_of(results: Iterable[ModelRunnerOutput], num_requests: int) -> list[list[int]]:
    """Return the tokens that each request sampled."""
    outputs: list[list[int]] = [[] for _ in range(num_requests)]
    for result in results:
        for handle, token_id in zip(result.handles.tolist(), result.token_ids.tolist(), strict=True):
            outputs[handle].append(token_id)
    return outputs


def random_prompts(num_requests: int, length: int, vocab_size: int, seed: int = 0) -> list[Ints]:
    """Return random prompts of the same length."""
    return list(np.random.default_rng(seed).integers(3, vocab_size, (num_requests, length)))


def _result(step: ModelRunnerOutput | PendingStep) -> ModelRunnerOutput:
    result = step if isinstance(step, ModelRunnerOutput) else step.wait()
    if result.failures:
        raise RuntimeError(f"Step {result.step_id} failed a request: {result.failures[0][1]}")
    return result
