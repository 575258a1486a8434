"""Settings of an engine core whose effect only a whole engine core shows. Real gRPC."""

import time

import pytest

from tests.engine_core_svc.service_fakes import Stack
from tetrad.engine_core_svc import service
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.structured_output import filler
from tetrad.v1 import types_pb2


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({"scheduling_policy": "fcfs"}, [1, 2, 3]),
        ({"scheduling_policy": "priority"}, [1, 3, 2]),
        ({"scheduling_policy": "priority", "priority_order": "low_first"}, [1, 2, 3]),
    ],
    ids=["fcfs", "priority", "low first"],
)
async def test_policy_and_priority_order_decide_who_is_served_first(directory, settings, order):
    """The first one runs before there is a choice; it is as urgent as can be, so that nobody preempts it."""
    async with Stack(directory, max_num_seqs=1, **settings) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        first = 9 if order == [1, 3, 2] else -9
        for handle, priority in ((1, first), (2, 0), (3, 5)):
            client.add(handle, [handle], priority=priority)
        await stack.until_load(lambda load: load.stats.num_running_reqs + load.stats.num_waiting_reqs == 3)

        stack.worker.go.set()
        await client.until_finished(1, 2, 3)

    assert list(client.finished) == order


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
async def test_requests_of_one_message_are_served_in_the_order_of_their_arrival(directory, policy):
    """The first one runs before there is a choice."""
    async with Stack(directory, max_num_seqs=1, scheduling_policy=policy) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        client.add(1, [1])
        client.add_at_once({2: 3_000, 3: 1_000, 4: 2_000})
        await stack.until_load(lambda load: load.stats.num_running_reqs + load.stats.num_waiting_reqs == 4)

        stack.worker.go.set()
        await client.until_finished(1, 2, 3, 4)

    assert list(client.finished) == [1, 3, 4, 2]


async def test_a_client_with_a_clock_ahead_does_not_wait_for_all_others(directory):
    """Its request arrives at the engine core before the one of another client, whose clock is right."""
    async with Stack(directory, max_num_seqs=1, scheduling_policy="priority") as stack:
        client, other = await stack.client(), await stack.client()
        stack.worker.go.clear()
        client.add(1, [1])
        client.add(2, [2], arrival_time_unix_nanos=time.time_ns() + 3600 * 10**9)
        await stack.until_load(lambda load: load.stats.num_running_reqs + load.stats.num_waiting_reqs == 2)
        other.add(3, [3], arrival_time_unix_nanos=time.time_ns())
        await stack.until_load(lambda load: load.stats.num_running_reqs + load.stats.num_waiting_reqs == 3)

        stack.worker.go.set()
        await client.until_finished(1, 2)
        await other.until_finished(3)

        assert list(stack.worker.names.values()) == ["r1", "r2", "r3"]


async def test_overrides_of_the_models_config_reach_the_worker(directory):
    async with Stack(directory, hf_overrides='{"rope_theta": 5}') as stack:
        await stack.client()

        assert stack.worker.last_load.hf_overrides_json == '{"rope_theta": 5}'


@pytest.mark.parametrize("divides", [False, True])
async def test_how_experts_are_divided_reaches_the_worker(directory, divides):
    async with Stack(directory, enable_expert_parallel=divides) as stack:
        await stack.client()

        assert stack.worker.last_load.enable_expert_parallel is divides


@pytest.mark.parametrize(("load_format", "is_random"), [("auto", False), ("dummy", True)])
async def test_the_load_format_decides_whether_weights_are_made_up(directory, load_format, is_random):
    async with Stack(directory, load_format=load_format) as stack:
        await stack.client()

        assert stack.worker.last_load.random_weights is is_random


async def test_a_constraint_that_takes_too_long_to_compile_is_refused(directory, tokenizer_json):
    takes_seconds = "a?b*" * 20_000
    async with Stack(directory, tokenizer_json, grammar_timeout_s=0.05) as stack:
        client = await stack.client()
        params = types_pb2.SamplingParams(structured_outputs=types_pb2.StructuredOutputs(regex=takes_seconds))

        client.add(1, [1], sampling_params=params)
        while "r1" not in client.rejected:
            await client.read()

    assert client.rejected["r1"].message == "regex takes longer than 0.05 s to compile; make it smaller."


async def test_masks_are_computed_by_as_many_threads_as_are_set(directory, tokenizer_json, monkeypatch):
    made, executor = [], filler.LLExecutor
    monkeypatch.setattr(filler, "LLExecutor", lambda num_threads: made.append(num_threads) or executor(num_threads))
    async with Stack(directory, tokenizer_json, grammar_threads=3) as stack:
        client = await stack.client()
        params = types_pb2.SamplingParams(max_tokens=3, structured_outputs=types_pb2.StructuredOutputs(regex="[a-z]{3}"))

        client.add(1, [1], sampling_params=params)
        await client.until_finished(1)

    assert made == [3]


@pytest.mark.parametrize(
    ("settings", "is_observed"),
    [({}, False), ({"kv_cache_metrics": True, "kv_cache_metrics_sample": 1}, True)],
    ids=["by default", "as set"],
)
async def test_lives_of_blocks_are_measured_if_that_is_set(directory, monkeypatch, settings, is_observed):
    metrics = EngineMetrics()
    monkeypatch.setattr(service, "EngineMetrics", lambda _: metrics)
    async with Stack(directory, num_gpu_blocks_override=3, max_model_len=32, **settings) as stack:
        client = await stack.client()
        for handle in (1, 2, 3):
            client.add(handle, [handle])
            await client.until_finished(handle)

        num_ended = metrics.registry.get_sample_value("tetrad:engine_kv_block_lifetime_seconds_count")

    assert bool(num_ended) is is_observed
