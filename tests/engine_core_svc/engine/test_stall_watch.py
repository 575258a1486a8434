"""Requests that wait although nothing runs: health, load and sessions report the request and the reason."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.engine_core_svc.fake_worker import expected
from tests.engine_core_svc.service_fakes import WAIT_S, Stack
from tetrad.engine_core_svc.engine import stall_watch
from tetrad.engine_core_svc.engine.condition import Condition
from tetrad.engine_core_svc.engine.stall_watch import StallWatch, find_stuck
from tetrad.engine_core_svc.sessions.sessions import Sessions
from tetrad.engine_core_svc.worker import kv_layout as layout
from tetrad.v1 import engine_core_pb2 as pb

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def without_checks(monkeypatch):
    """Let an engine core start whose steps are too small for its prompts: its queue can get stuck."""
    monkeypatch.setattr(layout, "_check_step", lambda settings, max_model_len: settings.max_num_batched_tokens)


async def until_status(stack, status):
    stub = health_pb2_grpc.HealthStub(stack.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="tetrad.v1.EngineCoreService"))
    async with asyncio.timeout(WAIT_S):
        while (await watch.read()).status != status:
            pass


async def test_a_queue_whose_head_cannot_run_is_reported_until_it_moves(directory, monkeypatch):
    without_checks(monkeypatch)
    async with Stack(directory, step_timeout_s=0.2, enable_chunked_prefill=False, max_num_batched_tokens=8) as stack:
        client = await stack.client()

        client.add(1, range(20, 40))
        client.add(2, [2], max_tokens=5)
        await until_status(stack, NOT_SERVING)
        problem = (await stack.load()).problem
        late = await stack.client()
        await late.read()
        client.abort("r1")
        await client.until_finished(2)
        await until_status(stack, SERVING)

        assert problem == (
            "Request 'r1' of 20 tokens waits, and no step was planned for 0.2 s: 20 tokens are left to compute, a step has 8 "
            "(max_num_batched_tokens), and chunked prefill is off."
        )
        assert client.tokens[2] == expected(2, 5)
        assert client.notices == ["STALLED", "RECOVERED"]
        assert (late.notices, late.notice_texts) == (["STALLED"], [problem])
        assert (await stack.load()).problem == ""


async def test_the_queue_moves_on_when_the_request_at_its_head_expires(directory, monkeypatch):
    without_checks(monkeypatch)
    async with Stack(directory, enable_chunked_prefill=False, max_num_batched_tokens=8) as stack:
        client = await stack.client()

        client.add(1, range(20, 40), timeout_nanos=50_000_000)
        client.add(2, [2], max_tokens=5)
        await client.until_finished(1, 2)

        assert client.tokens[2] == expected(2, 5)


@pytest.mark.parametrize("mode", [pb.PAUSE_MODE_KEEP, pb.PAUSE_MODE_WAIT])
async def test_requests_that_an_operator_holds_up_are_no_stall(directory, monkeypatch, mode):
    seen = set()
    monkeypatch.setattr(StallWatch, "note_step", lambda self, *, is_standing: seen.add(is_standing))
    async with Stack(directory) as stack:
        client = await stack.client()
        await stack.admin.Pause(pb.PauseRequest(mode=mode))

        client.add(1, [1])
        await stack.until_load(lambda load: load.stats.num_waiting_reqs == 1)
        await stack.admin.Resume(pb.ResumeRequest())
        await client.until_finished(1)

    assert seen == {False}


class Watch:
    """A StallWatch whose timer goes off when the test says so."""

    def __init__(self, bench, monkeypatch):
        self.watched = 0
        monkeypatch.setattr(stall_watch, "Watchdog", lambda timeout_s, bark: self._dog(bark))
        self.condition = Condition(lambda: None)
        self.stall = StallWatch(bench.scheduler, Sessions(), self.condition, timeout_s=300.0)

    def _dog(self, bark):
        self.bark = bark
        return self

    def watch(self):
        self.watched += 1

    def rest(self):
        pass


def test_what_arrives_behind_a_stuck_request_does_not_put_the_report_off(make_bench, monkeypatch):
    bench = make_bench(num_blocks=2)
    watch = Watch(bench, monkeypatch)
    bench.add(100)

    for _ in range(3):
        assert bench.plan() is None
        watch.stall.note_step(is_standing=True)

    assert watch.watched == 1


def test_a_problem_of_another_cause_is_not_cleared(make_bench, monkeypatch):
    bench = make_bench(num_blocks=2)
    watch = Watch(bench, monkeypatch)
    bench.add(100)
    watch.stall.note_step(is_standing=True)
    watch.bark()
    watch.stall.rest()
    watch.condition.set_problem("The worker was lost")

    watch.stall.note_step(is_standing=False)

    assert watch.condition.problem == "The worker was lost"


def test_too_few_blocks_are_named(make_bench):
    bench = make_bench(num_blocks=4)
    stuck = bench.add(100)
    assert bench.plan() is None

    assert find_stuck(bench.scheduler) == (stuck, "it needs 7 KV blocks; 3 of 3 are free.")


def test_a_mask_that_is_not_computed_is_named(make_bench, compiled):
    bench = make_bench()
    held = bench.add_constrained(10, compiled("regex", "a+"))
    held.is_held = True
    assert bench.plan() is None

    assert find_stuck(bench.scheduler) == (held, "the mask of its structured output is not computed.")


def test_isolation_without_a_suspect_is_named(make_bench):
    bench = make_bench()
    bench.add(10)
    bench.scheduler.isolate(0)
    assert bench.plan() is None

    request, why = find_stuck(bench.scheduler)

    assert request is None
    assert "suspected" in why


def test_a_token_that_did_not_come_back_is_named(make_bench):
    bench = make_bench()
    request = bench.add(10)
    request.num_placeholders = 1
    assert bench.plan() is None

    assert find_stuck(bench.scheduler) == (request, "a token that was sampled for it did not come back.")
