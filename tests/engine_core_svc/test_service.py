"""The engine core as its clients see it: real gRPC on both sides, a worker that adds one to the last token."""

import asyncio
import time

import grpc
import pytest
from structlog.testing import capture_logs

from tests.engine_core_svc.fake_worker import MAX_LEN, VOCAB_SIZE
from tests.engine_core_svc.service_fakes import WAIT_S, Stack
from tetrad.engine_core_svc.sessions import sessions
from tetrad.services.errors import FailedPrecondition
from tetrad.services.rpc.columns import pack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2


async def test_a_session_begins_with_what_the_engine_is(stack):
    ready = (await stack.client()).ready

    assert (ready.vocab_size, ready.max_model_len, ready.num_gpu_blocks, ready.device) == (VOCAB_SIZE, MAX_LEN, 64, "fake")
    assert ready.kv_cache_dtype == "int8"


async def test_a_request_gets_its_tokens_and_its_end(stack):
    client = await stack.client()

    client.add(7, [10, 11])
    await client.until_finished(7)

    assert client.tokens[7] == [12, 13, 14, 15]
    assert client.finished[7].finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_a_step_sends_one_message_for_all_of_a_sessions_requests(stack):
    client = await stack.client()
    stack.worker.go.clear()
    for handle in range(64):
        client.add(handle, [handle], max_tokens=10)
    await asyncio.sleep(0)
    stack.worker.go.set()

    await client.until_finished(*range(64))

    assert all(client.tokens[handle] == list(range(handle + 1, handle + 11)) for handle in range(64))
    step_ids = [message.step_id for message in client.messages]
    assert len(step_ids) == len(set(step_ids)) <= stack.worker.num_steps


async def test_only_the_first_and_last_outputs_of_a_request_are_rich(stack):
    client = await stack.client()

    client.add(1, [5], max_tokens=20)
    await client.until_finished(1)

    assert sum(len(message.outputs) for message in client.messages) == 2
    assert client.messages[0].outputs[0].prefill_stats.num_prompt_tokens == 1


async def test_a_session_says_what_it_reads_and_knows(stack):
    client = await stack.client()

    assert client.ready.supports_shared_sampling_params
    assert client.ready.max_message_bytes == stack.settings.max_message_bytes


async def test_an_id_in_use_is_refused_and_free_again_afterwards(stack):
    client = await stack.client()
    stack.worker.go.clear()
    client.add(1, [1], request_id="a")
    client.add(2, [1], request_id="a")
    await client.read()
    stack.worker.go.set()
    await client.until_finished(1)

    client.add(3, [1], request_id="a")
    await client.until_finished(3)

    assert list(client.rejected) == ["a"]


async def test_resumed_tokens_are_counted_and_generation_goes_on_behind_them(stack):
    client = await stack.client()

    client.add(1, [1], max_tokens=5, resumed_output_token_ids=pack_u32([2, 3]))
    await client.until_finished(1)

    assert client.tokens[1] == [4, 5, 6]


async def test_a_resumed_request_whose_output_is_cached_counts_only_its_prompt_as_cached(stack):
    """After a crash, a request may be resumed behind tokens that the same request of another client has left in the cache."""
    client = await stack.client()
    client.add(1, [1], max_tokens=60)
    await client.until_finished(1)

    client.add(2, [1], max_tokens=60, resumed_output_token_ids=pack_u32(client.tokens[1][:50]))
    await client.until_finished(2)

    assert client.tokens[2] == client.tokens[1][50:]
    [stats] = [each.prefill_stats for message in client.messages for each in message.outputs if each.handle == 2][:1]
    assert (stats.num_cached_tokens, stats.num_computed_tokens) == (1, 0)


async def test_an_abort_frees_the_blocks_and_answers_nothing(stack):
    client = await stack.client()
    client.add(1, [1] * 40, max_tokens=200)
    await client.read()

    client.abort("r1", "unknown")
    await stack.until_idle()

    assert 1 not in client.finished


async def test_the_gauges_fall_to_zero_after_the_last_abort(stack):
    client = await stack.client()
    client.add(1, [1], max_tokens=200)
    await client.read()

    client.abort("r1")
    while not client.messages[-1].HasField("scheduler_stats") or client.messages[-1].scheduler_stats.num_running_reqs:
        await client.read()

    assert client.messages[-1].scheduler_stats.kv_cache_usage == 0


async def test_the_load_says_what_the_blocks_hold(stack):
    client = await stack.client()
    before = (await stack.load()).kv_cache
    client.add(1, [1] * (2 * before.block_size + 1), max_tokens=1)
    await client.until_finished(1)
    cache = (await stack.until_idle()).kv_cache

    assert (before.num_free_cached_blocks, before.num_blocks_cached) == (0, 0)
    assert (cache.num_free_cached_blocks, cache.num_blocks_cached, cache.num_blocks_evicted) == (2, 2, 0)
    assert [(group.sliding_window, group.is_state) for group in cache.groups] == [(0, False)]
    assert cache.num_host_blocks == 0


async def test_every_frontend_hears_how_busy_the_engine_is_and_when_it_no_longer_is(stack, monkeypatch):
    """A frontend chooses engines by that, and may have no request at this one."""
    monkeypatch.setattr(sessions, "_STATS_INTERVAL_S", 0.01)
    busy, other = await stack.client(), await stack.client()

    busy.add(1, [1], max_tokens=200)
    await other.read()
    heard = [other.messages[-1].scheduler_stats]
    while heard[-1].num_running_reqs:
        await other.read()
        heard.append(other.messages[-1].scheduler_stats)
    await busy.until_finished(1)

    assert heard[0].num_running_reqs == 1
    assert heard[-1].kv_cache_usage == 0
    assert all(message.HasField("scheduler_stats") for message in busy.messages)
    assert len(other.messages) < len(busy.messages) / 2, "not after every step"


async def test_requests_end_with_their_session(stack):
    client = await stack.client()
    stack.worker.go.clear()
    for handle in range(20):
        client.add(handle, [handle], max_tokens=200)
    client.add(99, [], request_id="marker")
    await client.read()

    client.call.cancel()
    stack.worker.go.set()

    assert (await stack.until_idle()).num_sessions == 0


async def test_a_worker_that_fails_costs_no_token(stack):
    client = await stack.client()
    for handle in range(8):
        client.add(handle, [handle], max_tokens=100)
    while len(client.tokens.get(7, [])) < 10:
        await client.read()

    stack.worker.crashed.set()
    await client.until_finished(*range(8))

    assert client.notices == ["WORKER_LOST", "RECOVERED"]
    assert all(client.tokens[handle] == list(range(handle + 1, handle + 101)) for handle in range(8))
    assert stack.worker.num_loads == 2
    await stack.until_idle()


@pytest.mark.parametrize("of_earlier_release", [False, True])
async def test_a_deadline_ends_the_request_with_its_reason(stack, of_earlier_release):
    client = await stack.client()
    stack.worker.go.clear()
    fields = {"deadline_unix_nanos": time.time_ns() + 50_000_000} if of_earlier_release else {"timeout_nanos": 50_000_000}

    client.add(1, [1], **fields)
    await client.until_finished(1)

    assert client.finished[1].finish_reason == types_pb2.FINISH_REASON_ERROR
    assert client.finished[1].status.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


@pytest.mark.parametrize("skew_s", [-3600, -30, 30, 3600])
async def test_a_clients_clock_changes_nothing_in_how_long_a_request_may_take(stack, skew_s):
    client = await stack.client()
    clock = time.time_ns() + skew_s * 10**9

    client.add(1, [1], timeout_nanos=20 * 10**9, deadline_unix_nanos=clock + 20 * 10**9, arrival_time_unix_nanos=clock)
    await client.until_finished(1)

    assert client.finished[1].finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_another_schema_revision_is_refused(stack):
    await stack.client()
    stranger = stack.raw_client()

    with pytest.raises((grpc.aio.AioRpcError, AttributeError)):
        await stranger.start(revision=999)

    assert await stranger.call.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "999" in await stranger.call.details()


@pytest.mark.parametrize("hello", [{}, {"contract_revision": 99, "capabilities": [99]}])
async def test_a_client_of_an_earlier_or_later_contract_revision_is_served(stack, hello):
    client = await stack.client(**hello)

    client.add(1, [1])
    await client.until_finished(1)

    assert client.finished[1].finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_a_paused_engine_takes_requests_and_runs_them_when_resumed(stack):
    client = await stack.client()
    await stack.admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_KEEP))

    client.add(1, [1])
    client.add(2, [], request_id="marker")
    await client.read()
    steps_while_paused = stack.worker.num_steps
    await stack.admin.Resume(pb.ResumeRequest())
    await client.until_finished(1)

    assert steps_while_paused == 0


async def test_a_full_queue_refuses_with_a_time_to_come_back(directory):
    async with Stack(directory, max_num_seqs=1, max_num_queued_reqs=1) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        for handle in range(4):
            client.add(handle, [1])
            await asyncio.sleep(0.05)  # the first is planned before the next arrives
        await client.read()
        stack.worker.go.set()
        await client.until_finished(0, 1)

    assert set(client.rejected) == {"r2", "r3"}
    assert client.rejected["r2"].retry_after_s == 1.0


async def test_a_call_larger_than_the_queue_is_taken_whole_if_no_other_request_waits(directory):
    async with Stack(directory, max_num_seqs=1, max_num_queued_reqs=2) as stack:
        client = await stack.client()
        for handle in range(5):
            client.add(handle, [1], call_number=1)
        await client.until_finished(*range(5))

    assert not client.rejected


async def test_draining_finishes_what_runs_and_refuses_what_comes(stack):
    client = await stack.client()
    stack.worker.go.clear()
    client.add(1, [1], max_tokens=20)
    client.add(2, [], request_id="marker")
    await client.read()

    stack.shutdown.set()
    await client.read()
    client.add(3, [1])
    await client.read()
    stack.worker.go.set()
    await client.until_finished(1)
    await asyncio.wait_for(stack.serving, WAIT_S)

    assert client.notices == ["DRAINING"]
    assert client.rejected["r3"].reason == "DRAINING"
    assert len(client.tokens[1]) == 20


async def test_an_engine_core_that_ends_while_it_starts_does_not_go_on(directory):
    async with Stack(directory) as stack:
        stack.worker.refuses = True
        while not stack.worker.num_loads:  # noqa: ASYNC110 - the fake has no event to wait for
            await asyncio.sleep(0.01)

        stack.shutdown.set()
        await asyncio.wait_for(stack.serving, WAIT_S)

        assert not [task for task in asyncio.all_tasks() if task.get_coro().__name__ == "start_engine"]


async def test_a_context_that_the_pool_cannot_hold_ends_the_start_naming_the_numbers(directory):
    async with Stack(directory, num_gpu_blocks_override=4, block_size=16) as stack:
        with pytest.raises(
            FailedPrecondition, match=r"4 KV blocks of 16 tokens hold one sequence of 48 tokens, but max_model_len is 256"
        ):
            await asyncio.wait_for(stack.serving, WAIT_S)


async def test_an_automatic_context_is_fitted_to_the_pool(directory):
    async with Stack(directory, num_gpu_blocks_override=4, max_model_len="auto") as stack:
        assert (await stack.client()).ready.max_model_len == 48


async def test_the_time_of_a_collective_call_is_kept(stack):
    await stack.client()
    call = pb.EngineCoreAdminServiceCollectiveRpcRequest

    with pytest.raises(grpc.aio.AioRpcError) as late:
        await stack.admin.CollectiveRpc(call(method="hang", timeout_s=0.05), timeout=WAIT_S)
    with pytest.raises(grpc.aio.AioRpcError) as wrong:
        await stack.admin.CollectiveRpc(call(method="echo", timeout_s=0), timeout=WAIT_S)

    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert from_rpc_error(wrong.value).field == "timeout_s"
    answer = await stack.admin.CollectiveRpc(call(method="echo", args_json="[7]"), timeout=WAIT_S)
    assert list(answer.results_json) == ["[7]"]


async def test_a_priority_without_effect_is_said_once_in_the_log(stack):
    client = await stack.client()

    with capture_logs() as logs:
        client.add(1, [1], priority=3)
        client.add(2, [1], priority=4)
        await client.until_finished(2)

    [event] = [event for event in logs if event["event"] == "priority.ignored"]
    assert (event["request_id"], event["priority"], event["scheduling_policy"]) == ("r1", 3, "fcfs")
