"""The engine core's step: schedule, update and wire of one decode step for 256 running requests.

`python -m benchmarks.engine_step`. There is no worker and no network: results are built as the wire module would decode them.
The figures are milliseconds per step, which must not grow with the number of waiting requests.
"""

import time
from collections.abc import Sequence

from benchmarks.figures import median, spread
from benchmarks.options import read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from tetrad.engine_core_svc.api.wire import encode_message
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.core.wire import SamplingMessage
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.outbox import StepOutputs
from tetrad.engine_core_svc.worker.wire import decode_result, encode_plan
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import types_pb2, worker_pb2

_STEPS = 200
_CASES = ((1, 0), (64, 0), (256, 0), (256, 100), (256, 1000), (256, 10_000))
"""Numbers of (running, waiting) requests."""
_MAX_STEP_MS = 2.0
_MAX_GROWTH = 1.15
"""Largest allowed ratio of a step's time with the longest queue to its time with no queue: "flat" within a machine's noise."""


def measure(num_running: int, num_waiting: int) -> float:
    """Return the median milliseconds of one decode step."""
    scheduler = Scheduler(SchedulerLimits(max_num_seqs=num_running, max_num_batched_tokens=65_536), KVCacheManager(40_000, 16))
    payload = WorkerPayload(SamplingMessage(types_pb2.SamplingParams()))
    for key in range(num_running + num_waiting):
        prompt = [(key * 131 + i) % 50_000 for i in range(100)]
        scheduler.add_request(
            Request(
                key=key, request_id=str(key), token_ids=prompt, num_prompt_tokens=100, max_total_tokens=8_000,
                sequence_number=key, handle=key, payload=payload,
            )
        )  # fmt: skip
    plan = scheduler.schedule()
    assert plan is not None
    keys = [new.key for new in plan.new_requests]
    output = worker_pb2.ModelRunnerOutput(
        handles=pack_u32(keys), num_tokens=pack_u32([1] * len(keys)), token_ids=pack_u32([7] * len(keys))
    )
    times = []
    for _ in range(_STEPS):
        output.step_id = plan.step_id
        result = output.SerializeToString()
        start = time.perf_counter()
        outputs = scheduler.update(decode_result(worker_pb2.ModelRunnerOutput.FromString(result)))
        encode_message(StepOutputs(plan.step_id, outputs))[0].SerializeToString()
        plan = scheduler.schedule()
        assert plan is not None
        encode_plan(plan).SerializeToString()
        times.append(time.perf_counter() - start)
    return median(times) * 1000


def _bars(found: dict[tuple[int, int], list[float]]) -> Sequence[Bar]:
    running = max(running for running, _ in _CASES)
    queues = {waiting: median(times) for (rows, waiting), times in found.items() if rows == running}
    return (
        Bar(f"a step of {running} running requests", _MAX_STEP_MS, max(queues.values()), at_most=True, unit=" ms"),
        Bar(f"{max(queues):,} waiting against none", _MAX_GROWTH, queues[max(queues)] / queues[0], at_most=True),
    )


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("engine_step", __doc__)
    found: dict[tuple[int, int], list[float]] = {case: [] for case in _CASES}
    for _ in range(options.rounds):
        for case, times in found.items():
            times.append(measure(*case))
    section = Section("The engine core alone: one decode step, schedule, update and wire")
    section.text(f"Medians of {_STEPS} steps, over rounds; no network and no worker.")
    rows = [[str(running), f"{waiting:,}", spread(times, 3)] for (running, waiting), times in found.items()]
    section.table(["running", "waiting", "ms per step"], rows)
    add_bars(section, _bars(found))
    write_section("engine_step", section, options)


if __name__ == "__main__":
    main()
