"""vllm.grpc.engine.VllmEngine: health, facts, loads, KV events, and the calls that need an operator key."""

import asyncio

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

from tests.frontend.api.gateways.calls import answers_of
from tests.frontend.api.gateways.requests import vllm_engine_request as request
from tests.frontend.fakes import EOS, FakeEngine, running_engine
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import engine_core_pb2, types_pb2

CLEARED = engine_core_pb2.KvCacheEvent(cleared=engine_core_pb2.KvBlocksCleared())


async def test_facts(vllm_engine):
    health = await vllm_engine.HealthCheck(vllm_engine_pb2.HealthCheckRequest())
    model = await vllm_engine.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest())
    server = await vllm_engine.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
    loads = await vllm_engine.GetLoads(vllm_engine_pb2.GetLoadsRequest())

    assert (health.healthy, health.message) == (True, "OK")
    assert (model.model_path, model.served_model_name, model.max_context_length) == ("fake", "fake", 512)
    assert (model.is_generation, list(model.eos_token_ids)) == (True, [EOS])
    assert (server.server_type, server.data_parallel_size, server.max_num_seqs) == ("vllm-grpc", 1, 64)
    assert [load.dp_rank for load in loads.loads] == [0]


@pytest.mark.parametrize(
    ("role", "name", "connector"),
    [
        (types_pb2.KV_ROLE_UNSPECIFIED, "", ""),
        (types_pb2.KV_ROLE_PRODUCER, "kv_producer", "grpc"),
        (types_pb2.KV_ROLE_CONSUMER, "kv_consumer", "grpc"),
        (types_pb2.KV_ROLE_BOTH, "kv_both", "grpc"),
    ],
)
async def test_a_server_says_what_its_engine_core_does_with_kv_blocks(serve_frontend, engine, role, name, connector):
    engine.kv_role = role
    async with serve_frontend(listen="127.0.0.1:0") as frontend, open_channel(frontend.grpc_address) as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        server = await stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())

    assert (server.kv_role, server.kv_connector) == (name, connector)


async def test_a_server_with_engine_cores_of_two_roles_has_both(serve_frontend, engine, sockets):
    engine.kv_role = types_pb2.KV_ROLE_CONSUMER
    other = FakeEngine(sockets / "producer", engine_index=1)
    other.kv_role = types_pb2.KV_ROLE_PRODUCER
    async with running_engine(other, engine.carrier) as producer:
        targets = (engine.target, producer.target)
        async with (
            serve_frontend(listen="127.0.0.1:0", engine_targets=targets) as frontend,
            open_channel(frontend.grpc_address) as channel,
        ):
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            server = await stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())

    assert server.kv_role == "kv_both"


@pytest.fixture
async def hung_engine(sockets):
    """The operators' port of an engine core that takes connections and never answers."""
    held, path = asyncio.Event(), str(sockets / "hung")

    async def hold(_, writer):
        await held.wait()
        writer.close()

    server = await asyncio.start_unix_server(hold, path)
    yield f"unix:{path}"
    held.set()
    server.close()


async def test_facts_of_the_engines_that_answer_do_not_wait_for_one_that_is_away(serve_frontend, engine, hung_engine):
    targets = (hung_engine, engine.target)
    async with (
        serve_frontend(listen="127.0.0.1:0", engine_admin_targets=targets) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        async with asyncio.timeout(5):
            server = await stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
            loads = await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest())

    assert server.server_type == "vllm-grpc"
    assert (loads.dp_rank_count, [load.dp_rank for load in loads.loads]) == (2, [1])


async def test_utilization_is_that_of_the_kv_cache_as_vllm_s_servicer_tells_it(vllm_engine, engine):
    engine.load_fields = {"stats": engine_core_pb2.SchedulerStats(num_running_reqs=32, kv_cache_usage=0.25)}

    [load] = (await vllm_engine.GetLoads(vllm_engine_pb2.GetLoadsRequest())).loads

    assert (load.num_running_reqs, load.max_running_requests, load.token_usage, load.utilization) == (32, 64, 0.25, 0.25)


async def test_loads_need_the_operators_ports(serve_frontend):
    async with (
        serve_frontend(listen="127.0.0.1:0", engine_admin_targets=()) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await vllm_engine_pb2_grpc.VllmEngineStub(channel).GetLoads(vllm_engine_pb2.GetLoadsRequest())

    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_health_says_what_is_missing(vllm_engine, engine):
    await engine.kill()

    async with asyncio.timeout(10):
        while (answer := await vllm_engine.HealthCheck(vllm_engine_pb2.HealthCheckRequest())).healthy:
            pass
    assert "No engine core is reachable" in answer.message


async def test_an_operator_flushes_the_cache(vllm_engine, engine):
    done = await vllm_engine.FlushCache(common_pb2.FlushCacheRequest())

    assert done.success
    assert engine.orders == [("reset", False)]


async def test_what_concerns_everybody_is_for_operators(serve_frontend, engine):
    async with (
        serve_frontend(listen="127.0.0.1:0", api_key=("user",), operator_api_key=("operator",)) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        user = (("authorization", "Bearer user"),)
        calls = (
            stub.FlushCache(common_pb2.FlushCacheRequest(), metadata=user),
            stub.StartProfile(common_pb2.StartProfileRequest(), metadata=user),
            stub.StopProfile(common_pb2.StopProfileRequest(), metadata=user),
            stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), metadata=user),
        )
        codes = [await call.code() for call in calls]

    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 4
    assert not engine.orders


async def test_an_operator_records_the_engines(vllm_engine):
    started = await vllm_engine.StartProfile(common_pb2.StartProfileRequest())
    stopped = await vllm_engine.StopProfile(common_pb2.StopProfileRequest())

    assert started.success
    assert (stopped.success, stopped.message) == (True, "/far/away/profile-worker-1.json")


async def test_a_recording_has_no_options(vllm_engine):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await vllm_engine.StartProfile(common_pb2.StartProfileRequest(output_dir="/tmp"))

    assert from_rpc_error(caught.value).field == "output_dir"


async def test_ranks_of_events_and_loads_are_those_that_requests_are_pinned_to(rank_1_and_0):
    engines, channel = rank_1_and_0
    stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
    for rank, engine in zip((1, 0), engines, strict=True):
        engine.load_fields = {"num_waiting_tokens": rank}
        engine.kv_batches.put_nowait(engine_core_pb2.SubscribeKvEventsResponse(events=[CLEARED], timestamp_unix_s=rank))

    loads = (await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest())).loads
    call = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
    batches = [await call.read() for _ in range(2)]
    call.cancel()
    await answers_of(stub.Generate(request(data_parallel_rank=0)))

    assert sorted((load.dp_rank, load.num_waiting_uncached_tokens) for load in loads) == [(0, 0), (1, 1)]
    assert sorted((batch.dp_rank, batch.timestamp) for batch in batches) == [(0, 0.0), (1, 1.0)]
    assert [len(engine.requests) for engine in engines] == [0, 1]


async def test_a_lost_engine_core_keeps_no_events_of_the_others_back(rank_1_and_0):
    [second, first], channel = rank_1_and_0
    stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
    await second.kill()
    async with asyncio.timeout(10):
        while len((await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest())).loads) == 2:
            pass
    call = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())

    async with asyncio.timeout(10):
        lost = await call.read()
        for _ in range(2):
            first.kv_batches.put_nowait(engine_core_pb2.SubscribeKvEventsResponse(events=[CLEARED]))
            assert (await call.read()).dp_rank == 0
        await second.start()
        status = await call.code()

    assert (lost.dp_rank, [event.WhichOneof("data") for event in lost.events]) == (1, ["cleared"])
    assert status == grpc.StatusCode.UNAVAILABLE  # a gateway subscribes again then, to both
