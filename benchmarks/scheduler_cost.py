"""What a decode step costs the engine core: schedule, update and the wire, for 256 running requests.

No worker and no network: results are made as the wire would bring them. Prints milliseconds per step, and shows that it is
flat in the number of waiting requests.
"""

import statistics
import time

from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.outbox import StepOutputs
from tetrad.engine_core_svc.request import Request
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler, SchedulerLimits
from tetrad.engine_core_svc.wire import WorkerPayload, message_to_wire, plan_to_wire, result_from_wire
from tetrad.services.columns import pack_u32
from tetrad.v1 import types_pb2, worker_pb2

STEPS = 300


def measure(num_running: int, num_waiting: int) -> float:
    """Return the median milliseconds of one decode step."""
    scheduler = Scheduler(SchedulerLimits(max_num_seqs=num_running, max_num_batched_tokens=65_536), KVCacheManager(40_000, 16))
    payload = WorkerPayload(types_pb2.SamplingParams(), None)
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
    columns = {"handles": pack_u32(keys), "num_tokens": pack_u32([1] * len(keys)), "token_ids": pack_u32([7] * len(keys))}
    times = []
    for _ in range(STEPS):
        result = worker_pb2.ModelRunnerOutput(step_id=plan.step_id, **columns).SerializeToString()
        start = time.perf_counter()
        outputs = scheduler.update(result_from_wire(worker_pb2.ModelRunnerOutput.FromString(result)))
        message_to_wire(StepOutputs(plan.step_id, outputs)).SerializeToString()
        plan = scheduler.schedule()
        assert plan is not None
        plan_to_wire(plan).SerializeToString()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def main() -> None:
    """Print the table."""
    for num_running, num_waiting in ((1, 0), (64, 0), (256, 0), (256, 10_000)):
        print(f"{num_running:4} running, {num_waiting:6} waiting: {measure(num_running, num_waiting):6.3f} ms per step")


if __name__ == "__main__":
    main()
