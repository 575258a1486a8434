"""Faults between engine core and worker, and faults of clients: nobody pays for them but whose they are. Real gRPC."""

import asyncio

import grpc
import pytest
from engine_core_service_fakes import VOCAB_SIZE, WAIT_S, Stack
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tetrad.engine_core_svc import servicer
from tetrad.engine_core_svc.executor import Executor
from tetrad.engine_core_svc.sessions import Session
from tetrad.services.columns import pack_u32
from tetrad.services.errors import Code, FailedPrecondition
from tetrad.services.status import from_status
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2, worker_pb2

POISON = 777


def expected(handle, num_tokens):
    return list(range(handle + 1, handle + 1 + num_tokens))


async def test_the_request_that_kills_workers_fails_alone(stack):
    stack.worker.poison = POISON
    client = await stack.client()
    for handle in range(1, 6):
        client.add(handle, [handle], max_tokens=30)
    client.add(6, [POISON, 6], max_tokens=30, request_id="poison")

    await client.until_finished(*range(1, 7))

    assert from_status(client.finished[6].status).reason == "POISONOUS_REQUEST"
    assert all(client.tokens[handle] == expected(handle, 30) for handle in range(1, 6))
    assert stack.worker.num_deaths == 3
    fatal = [batch for batch in stack.worker.batches if "poison" in batch]
    assert fatal[-1] == {"poison"}
    assert client.notices == ["WORKER_LOST", "RECOVERED"] * 3
    await stack.until_idle()


async def test_a_step_that_always_fails_is_poison_although_the_process_lives(stack):
    client = await stack.client()
    stack.worker.reply = lambda output: stack.worker.crashed.set() or output

    client.add(1, [1], max_tokens=30)
    await client.until_finished(1)

    assert from_status(client.finished[1].status).reason == "POISONOUS_REQUEST"


async def test_connections_that_are_cut_convict_nobody(stack):
    stack.worker.holds_after_cut = True
    client = await stack.client()
    client.add(1, [1], max_tokens=200)

    for number in range(1, 8):
        stack.worker.cut.set()
        stack.worker.go.set()
        while client.notices.count("RECOVERED") < number:
            await client.read()
    stack.worker.go.set()
    await client.until_finished(1)

    assert client.tokens[1] == expected(1, 200)


def unknown_step(output):
    output.step_id += 1000
    return output


def unknown_request(output):
    output.handles = pack_u32([99])
    return output


def without_tokens(output):
    output.handles = output.token_ids = output.num_tokens = b""
    return output


def ragged(output):
    output.token_ids += b"123"
    return output


def more_tokens_than_requests(output):
    output.token_ids += pack_u32([1, 2])
    return output


def beyond_the_vocabulary(output):
    output.token_ids = pack_u32([VOCAB_SIZE])
    return output


def failing_a_stranger(output):
    output.failures.add(handle=99)
    return output


@pytest.mark.parametrize(
    "spoil",
    [
        unknown_step,
        unknown_request,
        without_tokens,
        ragged,
        more_tokens_than_requests,
        beyond_the_vocabulary,
        failing_a_stranger,
    ],
)
async def test_a_worker_that_answers_garbage_is_given_up_and_costs_no_token(stack, spoil):
    client = await stack.client()

    def spoil_once(output):
        stack.worker.reply = lambda output: output
        return spoil(output)

    client.add(1, [1], max_tokens=20)
    await client.read()
    stack.worker.reply = spoil_once
    await client.until_finished(1)

    assert client.tokens[1] == expected(1, 20)
    assert client.notices == ["WORKER_LOST", "RECOVERED"]
    await stack.until_idle()


@pytest.mark.parametrize(
    "message",
    [worker_pb2.ExecuteResponse(), worker_pb2.ExecuteResponse(ready=worker_pb2.ExecuteReady())],
    ids=["empty", "second ready"],
)
async def test_something_other_than_a_result_is_garbage_too(stack, message):
    client = await stack.client()
    stack.worker.raw = [message]

    client.add(1, [1], max_tokens=20)
    await client.until_finished(1)

    assert client.tokens[1] == expected(1, 20)
    assert client.notices == ["WORKER_LOST", "RECOVERED"]


async def test_bytes_that_are_no_message_are_garbage_too(stack, monkeypatch):
    """gRPC hands None to whoever reads them."""
    client = await stack.client()
    take = Executor._take
    undecodable = iter([True])
    monkeypatch.setattr(Executor, "_take", lambda self, response: take(self, None if next(undecodable, False) else response))

    client.add(1, [1], max_tokens=20)
    await client.until_finished(1)

    assert client.tokens[1] == expected(1, 20)
    assert "no ExecuteResponse" in client.notice_texts[0]


async def readiness(stack):
    """Return the answers of health as they change."""
    stub = health_pb2_grpc.HealthStub(stack.channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service="tetrad.v1.EngineCoreService"))


async def until_status(watch, status):
    async with asyncio.timeout(WAIT_S):
        while (await watch.read()).status != status:
            pass


async def test_a_step_that_does_not_come_back_costs_the_worker_its_readiness_and_its_connection(directory):
    async with Stack(directory, step_timeout_s=0.3) as stack:
        client, watch = await stack.client(), await readiness(stack)
        await until_status(watch, health_pb2.HealthCheckResponse.SERVING)
        stack.worker.swallow = 1

        client.add(1, [1], max_tokens=20)
        await until_status(watch, health_pb2.HealthCheckResponse.NOT_SERVING)
        await until_status(watch, health_pb2.HealthCheckResponse.SERVING)
        await client.until_finished(1)

        assert client.tokens[1] == expected(1, 20)
        assert client.notices == ["WORKER_LOST", "RECOVERED"]
        assert "0.3 s" in client.notice_texts[0]


async def test_an_engine_without_a_worker_says_so_and_why(stack):
    client, watch = await stack.client(), await readiness(stack)
    stack.worker.refuses = True
    stack.worker.cut.set()

    client.add(1, [1], max_tokens=20)
    await until_status(watch, health_pb2.HealthCheckResponse.NOT_SERVING)
    problem = (await stack.load()).problem
    stack.worker.refuses = False
    await client.until_finished(1)
    await until_status(watch, health_pb2.HealthCheckResponse.SERVING)

    assert "worker" in problem
    assert (await stack.load()).problem == ""
    assert client.tokens[1] == expected(1, 20)


async def test_load_says_how_the_worker_is(stack):
    client, watch = await stack.client(), await readiness(stack)
    [before] = (await stack.load()).workers
    stack.worker.refuses = True
    stack.worker.cut.set()

    client.add(1, [1], max_tokens=20)
    await until_status(watch, health_pb2.HealthCheckResponse.NOT_SERVING)
    [lost] = (await stack.load()).workers
    stack.worker.refuses = False
    await client.until_finished(1)
    [after] = (await stack.load()).workers

    assert [each.device for each in (before, lost, after)] == [before.device] * 3
    assert [each.HasField("connected_s") for each in (before, lost, after)] == [True, False, True]
    assert after.connected_s < before.connected_s + 60


async def test_requests_do_not_wait_for_a_worker_for_ever(directory):
    async with Stack(directory, recovery_timeout_s=0.3) as stack:
        client = await stack.client()
        stack.worker.refuses = True
        stack.worker.cut.set()

        client.add(1, [1], max_tokens=20)
        await client.until_finished(1)
        client.add(2, [1], max_tokens=20)
        while "r2" not in client.rejected:
            await client.read()
        stack.worker.refuses = False
        while "RECOVERED" not in client.notices:
            await client.read()
        client.add(3, [3], max_tokens=20)
        await client.until_finished(3)

        assert from_status(client.finished[1].status).code is Code.UNAVAILABLE
        assert client.rejected["r2"].code is Code.UNAVAILABLE
        assert client.tokens[3] == expected(3, 20)


async def test_a_worker_that_makes_no_progress_in_loading_is_tried_again(directory):
    async with Stack(directory, step_timeout_s=0.2) as stack:
        stack.worker.stuck_loads = 1
        client = await stack.client()
        client.add(1, [1])
        await client.until_finished(1)

        assert stack.worker.num_loads == 2


async def test_a_worker_replaced_between_loading_and_its_first_stream_is_brought_up_again(directory):
    stack = Stack(directory)
    stack.worker.not_ready = 1
    async with stack:
        client = await stack.client()
        client.add(1, [1])
        await client.until_finished(1)

        assert stack.worker.num_loads == 2


async def test_an_engine_core_leaves_its_worker_to_a_newer_one(stack):
    await stack.client()
    stack.worker.epoch = 2**63

    stack.worker.cut.set()
    (await stack.client()).add(1, [1])

    with pytest.raises(FailedPrecondition, match="Another engine core"):
        await asyncio.wait_for(asyncio.shield(stack.serving), WAIT_S)


async def test_draining_without_a_worker_hands_everything_back_at_once(directory):
    async with Stack(directory, drain_timeout_s=60.0) as stack:
        client = await stack.client()
        stack.worker.refuses = True
        stack.worker.cut.set()
        client.add(1, [1], max_tokens=20)
        while "WORKER_LOST" not in client.notices:
            await client.read()

        stack.shutdown.set()
        await asyncio.wait_for(stack.serving, 5)

        assert 1 not in client.finished
        assert await client.until_end() is grpc.StatusCode.OK


async def test_what_does_not_finish_within_the_grace_is_handed_back_in_good_order(directory):
    async with Stack(directory, drain_timeout_s=0.1) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        client.add(1, [1], max_tokens=20)
        await stack.until_load(lambda load: load.stats.num_running_reqs == 1)

        stack.shutdown.set()

        assert await client.until_end() is grpc.StatusCode.OK
        assert client.finished == {}


async def test_draining_while_paused_hands_everything_back_at_once(directory):
    async with Stack(directory, drain_timeout_s=60.0) as stack:
        client = await stack.client()
        await stack.admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_KEEP))
        client.add(1, [1], max_tokens=20)

        stack.shutdown.set()
        await asyncio.wait_for(stack.serving, 5)

        assert await client.until_end() is grpc.StatusCode.OK


async def test_a_bug_in_the_step_loop_ends_the_process_for_the_next_one_to_go_on(stack, monkeypatch):
    client = await stack.client()
    monkeypatch.setattr("tetrad.engine_core_svc.scheduler.scheduler.check_stop", lambda request: 1 / 0)

    client.add(1, [1])

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(asyncio.shield(stack.serving), WAIT_S)


async def test_a_bug_in_a_timer_does_too(stack, monkeypatch):
    client = await stack.client()
    monkeypatch.setattr("tetrad.engine_core_svc.engine.DeadlineExceeded", lambda text: 1 / 0)

    client.add(1, [1], max_tokens=200, deadline_unix_nanos=1)

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(asyncio.shield(stack.serving), WAIT_S)


@pytest.mark.parametrize(
    "message", [pb.SessionRequest(), pb.SessionRequest(hello=pb.SessionHello(client_id="again"))], ids=["empty", "second hello"]
)
async def test_a_strange_message_ends_its_session_and_no_other(stack, message):
    good, bad = await stack.client(), await stack.client()
    good.add(1, [1], max_tokens=50)

    bad.outbound.put_nowait(message)

    assert await bad.until_end() is grpc.StatusCode.INVALID_ARGUMENT
    await good.until_finished(1)
    assert good.tokens[1] == expected(1, 50)


async def test_a_session_without_a_hello_is_refused(stack):
    await stack.client()
    stranger = stack.raw_client()
    stranger.add(1, [1])

    assert await stranger.until_end() is grpc.StatusCode.INVALID_ARGUMENT


async def test_columns_that_cannot_be_read_are_answered_alone(stack):
    client = await stack.client()
    request = pb.EngineCoreRequest(
        request_id="bad", handle=9, prompt_token_ids=b"12345", sampling_params=types_pb2.SamplingParams(max_tokens=1)
    )

    client.outbound.put_nowait(pb.SessionRequest(add=pb.AddRequests(requests=[request])))
    client.add(1, [1])
    await client.until_finished(1)

    assert client.rejected["bad"].code is Code.INVALID_ARGUMENT


async def test_a_flood_of_requests_is_refused_and_others_are_served_meanwhile(directory):
    async with Stack(directory, max_num_queued_reqs=100) as stack:
        good, bad = await stack.client(), await stack.client()
        requests = [
            pb.EngineCoreRequest(
                request_id=f"f{number}", handle=number, prompt_token_ids=pack_u32([1]),
                sampling_params=types_pb2.SamplingParams(max_tokens=1),
            )
            for number in range(8_000)
        ]  # fmt: skip
        stack.worker.go.clear()
        bad.outbound.put_nowait(pb.SessionRequest(add=pb.AddRequests(requests=requests)))
        while len(bad.rejected) < 1000:
            await bad.read()
        bad.call.cancel()
        stack.worker.go.set()

        good.add(1, [1], max_tokens=50, resumed=True)
        await good.until_finished(1)

        assert good.tokens[1] == expected(1, 50)
        assert {error.code for error in bad.rejected.values()} == {Code.RESOURCE_EXHAUSTED}
        assert all(error.retry_after_s >= 1 for error in bad.rejected.values())


async def test_a_message_with_many_requests_leaves_others_their_turns(monkeypatch):
    turns = []

    async def take_turns():
        while True:
            turns.append(len(added))
            await asyncio.sleep(0)

    added = []
    monkeypatch.setattr(servicer, "_add", lambda engine, session, request: added.append(request))
    other = asyncio.create_task(take_turns())

    await servicer._add_all(None, Session(1, "test"), [pb.EngineCoreRequest()] * 1000)

    other.cancel()
    assert len(added) == 1000
    assert len(set(turns)) > 10


async def test_what_was_accepted_before_is_never_refused_for_a_full_queue(directory):
    async with Stack(directory, max_num_seqs=1, max_num_queued_reqs=1) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        for handle in range(1, 6):
            client.add(
                handle, [handle], resumed=handle % 2 == 0, resumed_output_token_ids=pack_u32([handle + 1] * (handle % 2))
            )
        stack.worker.go.set()

        await client.until_finished(*range(1, 6))

        assert client.rejected == {}


async def test_waiting_tokens_have_a_limit_that_an_empty_queue_does_not_know(directory):
    async with Stack(directory, max_num_seqs=1, max_num_queued_tokens=30) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        client.add(1, list(range(100)))
        await stack.until_load(lambda load: load.stats.num_running_reqs == 1)
        for handle in (2, 3):
            client.add(handle, [handle] * 20)
        await client.read()
        stack.worker.go.set()
        await client.until_finished(1, 2)

        assert set(client.rejected) == {"r3"}
        assert "20 more exceed the 30" in client.rejected["r3"].message
