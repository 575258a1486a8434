"""One line about each step: requests and tokens of prompts and of generation."""

from structlog.testing import capture_logs

from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.observability.step_log import WrittenStepLog


def lines_of(bench, metrics, num_steps):
    """Run steps; return what each line says."""
    with capture_logs() as logs:
        for _ in range(num_steps):
            plan = bench.plan()
            metrics.note_plan(plan)
            metrics.note_result(plan.step_id)
            bench.deliver()
    lines = [each for each in logs if each["event"] == "step.done"]
    names = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")
    assert all(each["elapsed_ms"] >= 0 for each in lines)
    return [tuple(each[name] for name in names) for each in lines]


def test_prompts_and_generation_are_counted_apart(make_bench):
    bench, metrics = make_bench(max_num_batched_tokens=8), EngineMetrics(WrittenStepLog())
    bench.add(12)
    first = lines_of(bench, metrics, 3)
    bench.add(3)

    assert first == [(1, 8, 0, 0), (1, 4, 0, 0), (0, 0, 1, 1)]
    assert lines_of(bench, metrics, 2) == [(1, 3, 1, 1), (0, 0, 2, 2)]


def test_steps_of_a_lost_worker_are_forgotten(make_bench):
    bench, metrics = make_bench(), EngineMetrics(WrittenStepLog())
    bench.add(4)
    metrics.note_plan(plan := bench.plan())
    metrics.note_loss("crash")

    with capture_logs() as logs:
        metrics.note_result(plan.step_id)

    assert logs == []


def test_nothing_is_written_by_default(make_bench):
    bench = make_bench()
    bench.add(4)

    assert lines_of(bench, EngineMetrics(), 2) == []
