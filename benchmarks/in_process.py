"""The same scheduler and model runner in one process, called directly: the stack without its split.

There is no gRPC, no protobuf, no session and no text: plans are converted to the runner's values and results to the
scheduler's, and nothing overlaps. The program runs in a separate process and answers requests line by line (peers/lines.py).
"""

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from benchmarks.peers.lines import answer, take_stdout
from benchmarks.stack import MODEL
from benchmarks.streams import new_prompt
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput, NewRequestData, SchedulerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.services.hub.model_files import resolve_model
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import CachedRequests, DraftTokens, NewRequest, SamplingSpec
from tetrad.worker_svc.core.plan import SchedulerOutput as WorkerPlan
from tetrad.worker_svc.core.result import ModelRunnerOutput as WorkerResult
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.devices import open_device

_BLOCK_SIZE = 16
_NUM_BLOCKS = 4096
_MAX_MODEL_LEN = 8192
_GREEDY = SamplingSpec(temperature=0.0)


class InProcess:
    """Scheduler and model runner as a lines.Engine.

    Args:
        dtype: data type as the option of `tetrad serve`.
    """

    def __init__(self, dtype: str) -> None:
        self._limits = SchedulerLimits()
        layout = KvLayout(
            _NUM_BLOCKS, _BLOCK_SIZE, _MAX_MODEL_LEN, self._limits.max_num_seqs, self._limits.max_num_batched_tokens
        )
        device = open_device(WorkerSettings(device="cpu"))
        device.set_up()
        model = device.load_model(LoadRequest(MODEL, resolve_model(MODEL), dtype=dtype), lambda *_: None)
        self._runner = model.make_runner(layout)
        self._runner.warm_up(lambda *_: None)

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Run until every sequence has its first token, then return the seconds of `steps` further steps."""
        scheduler = self._new_scheduler(batch, context, steps + 1)
        while any(request.num_output_tokens == 0 for request in scheduler.requests.values()):
            self._step(scheduler)
        start = time.perf_counter()
        for _ in range(steps):
            self._step(scheduler)
        return time.perf_counter() - start

    def prefill(self, length: int) -> float:
        """Return the seconds from a prompt to its first token."""
        scheduler = self._new_scheduler(1, length, 1)
        start = time.perf_counter()
        while scheduler.has_requests:
            self._step(scheduler)
        return time.perf_counter() - start

    def _new_scheduler(self, batch: int, context: int, max_tokens: int) -> Scheduler:
        self._runner.forget_all()
        scheduler = Scheduler(self._limits, KVCacheManager(_NUM_BLOCKS, _BLOCK_SIZE))
        for key in range(batch):
            prompt = new_prompt(context)
            request = Request(key, str(key), prompt, context, context + max_tokens, sequence_number=key, handle=key)
            scheduler.add_request(request)
        return scheduler

    def _step(self, scheduler: Scheduler) -> None:
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.update(result_of(finished(self._runner.execute(plan_of(plan)))))


def plan_of(plan: SchedulerOutput) -> WorkerPlan:
    """Convert a scheduler's plan to the runner's values, with greedy sampling."""
    cached = plan.cached_requests
    columns = CachedRequests(
        handles=np.array(cached.keys, np.int64),
        num_scheduled_tokens=np.array(cached.num_scheduled_tokens, np.int64),
        num_computed_tokens=np.array(cached.num_computed_tokens, np.int64),
        num_new_blocks=np.array([len(blocks) for [blocks] in cached.new_blocks], np.int64),
        new_block_ids=np.array([[block for [blocks] in cached.new_blocks for block in blocks]], np.int64),
    )
    return WorkerPlan(
        plan.step_id, [_new(new) for new in plan.new_requests], columns, plan.removed_keys, drafts=_drafts(plan.draft_tokens)
    )


def _drafts(draft_tokens: Mapping[int, Sequence[int]]) -> DraftTokens | None:
    if not draft_tokens:
        return None
    columns = [*draft_tokens], [*map(len, draft_tokens.values())], [*chain.from_iterable(draft_tokens.values())]
    return DraftTokens(*(np.array(column, np.int64) for column in columns))


def _new(new: NewRequestData) -> NewRequest:
    return NewRequest(
        handle=new.key,
        request_id=new.request_id,
        token_ids=np.array(new.token_ids, np.int64),
        num_prompt_tokens=new.num_prompt_tokens,
        num_computed_tokens=new.num_computed_tokens,
        num_scheduled_tokens=new.num_scheduled_tokens,
        block_ids=np.array(new.block_tables, np.int64),
        sampling=_GREEDY,
    )


def result_of(result: WorkerResult) -> ModelRunnerOutput:
    """Convert a runner's result to the scheduler's values; RuntimeError if a request failed."""
    if result.failures:
        raise RuntimeError(f"Step {result.step_id} failed a request: {result.failures[0][1]}")
    rows: dict[int, list[int]] = {}
    for handle, token_id in zip(result.handles.tolist(), result.token_ids.tolist(), strict=True):
        rows.setdefault(handle, []).append(token_id)
    return ModelRunnerOutput(result.step_id, [*rows], [*rows.values()])


def main() -> None:
    """Load the model in the dtype that the first argument names, and answer requests."""
    answers = take_stdout()
    answer(InProcess(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
