"""openengine.v1.Control: discovery, load, health, aborts, adapters, and the events of prefix caches."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tetrad.frontend.api.gateways.openengine_control.adapters import LoraAdapters
from tetrad.frontend.api.gateways.openengine_control.health import health_of
from tetrad.frontend.api.gateways.openengine_inference.open_requests import OpenRequests
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.llm.readiness import Dependency, Report
from tetrad.openengine_api import common_pb2, control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc, kv_events_pb2
from tetrad.services.errors import AlreadyExists, NotFound, Overloaded
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import pack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import engine_core_pb2

All = control_pb2.AllRequests
Lora = control_pb2.LoraAdapter


@pytest.fixture
def inference(channel):
    return inference_pb2_grpc.InferenceStub(channel)


@pytest.fixture
def control(channel):
    return control_pb2_grpc.ControlStub(channel)


@pytest.fixture
async def adaptable(serve_frontend, engine):
    """The Control of a server whose adapters may change."""
    engine.supports_lora = True
    async with (
        serve_frontend(listen="127.0.0.1:0", allow_runtime_lora_updating=True) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        yield control_pb2_grpc.ControlStub(channel)


def long_request(request_id):
    stopping = inference_pb2.StoppingOptions(max_tokens=400)
    return inference_pb2.GenerateRequest(request_id=request_id, prompt="hi", stopping=stopping)


async def refusal_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), from_rpc_error(caught.value).field


async def load(stub, number, name, path="/adapters/a"):
    return await stub.LoadLora(control_pb2.LoadLoraRequest(adapter=Lora(lora_id=number, lora_name=name, source_path=path)))


async def test_the_server_says_its_revision_its_role_and_its_capacity(control):
    server = await control.GetServerInfo(control_pb2.GetServerInfoRequest())

    assert (server.engine_name, server.engine_role) == ("tetrad", control_pb2.ENGINE_ROLE_AGGREGATED)
    assert (server.schema_revision, len(server.schema_release)) == (3, 40)
    assert 1 <= server.minimum_client_revision <= server.schema_revision
    assert list(server.supported_models) == ["fake"]
    assert server.parallelism.data_parallel_size == 1
    assert (server.kv_connector.HasField("enabled"), server.kv_connector.enabled) == (True, False)
    capacity = server.capacity
    assert (capacity.kv_block_size, capacity.total_kv_blocks) == (16, 100)
    assert (capacity.max_running_requests, capacity.max_batched_tokens, capacity.HasField("max_loras")) == (64, 2048, False)


async def test_a_model_says_what_requests_to_it_may_have(control):
    model = await control.GetModelInfo(control_pb2.GetModelInfoRequest(model="fake"))

    assert (model.served_model_name, model.max_context_length, model.max_output_tokens) == ("fake", 512, 511)
    assert (model.supports_token_ids_input, model.supports_lora, model.supports_multimodal) == (True, False, False)
    generation = model.generation
    assert list(generation.output_logprobs.candidate_selection_modes) == [
        control_pb2.CANDIDATE_TOKEN_SELECTION_MODE_TOP_N,
        control_pb2.CANDIDATE_TOKEN_SELECTION_MODE_TOKEN_IDS,
    ]
    assert generation.prompt_logprobs.max_top_n == 20
    assert len(generation.guided_decoding.modes) == 6
    assert (generation.max_num_sequences, generation.supports_priority, generation.supports_cache_salt) == (1024, False, True)


@pytest.mark.parametrize(("name", "code"), [("", grpc.StatusCode.INVALID_ARGUMENT), ("x", grpc.StatusCode.NOT_FOUND)])
async def test_a_model_is_asked_for_by_its_name(control, name, code):
    assert await refusal_of(control.GetModelInfo(control_pb2.GetModelInfoRequest(model=name))) == (code, "model")


async def test_load_is_a_sum_and_a_part_of_each_rank(control, engine):
    stats = engine_core_pb2.SchedulerStats(num_running_reqs=3, num_waiting_reqs=2)
    engine.load_fields = {"stats": stats, "num_gpu_blocks": 100, "num_free_blocks": 60, "num_waiting_tokens": 70}

    sums = await control.GetLoad(control_pb2.GetLoadRequest())
    [rank] = (await control.GetLoad(control_pb2.GetLoadRequest(include_per_rank=True))).ranks

    assert (sums.running_requests, sums.queued_requests, sums.waiting_tokens) == (3, 2, 70)
    assert (sums.used_kv_blocks, sums.total_kv_blocks, len(sums.ranks)) == (40, 100, 0)
    assert (rank.HasField("data_parallel_rank"), rank.data_parallel_rank, rank.running_requests) == (True, 0, 3)
    assert (rank.queued_requests, rank.used_kv_blocks, rank.total_kv_blocks) == (2, 40, 100)


async def test_the_load_of_silent_engine_cores_is_absent_and_not_zero(control, engine):
    engine.is_silent = True

    answer = await control.GetLoad(control_pb2.GetLoadRequest(include_per_rank=True))

    assert (answer.HasField("running_requests"), len(answer.ranks)) == (False, 0)


WELL, LOST = Dependency("tokenizer 0", ""), Dependency("engine core 1", "lost")


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (Report("", False, [WELL], started=True), control_pb2.HEALTH_STATE_READY),
        (Report("", False, [WELL, LOST], started=True), control_pb2.HEALTH_STATE_DEGRADED),
        (Report("All lost.", False, [LOST], started=True), control_pb2.HEALTH_STATE_NOT_READY),
        (Report("All lost.", False, [LOST], started=False), control_pb2.HEALTH_STATE_STARTING),
        (Report("Ending.", True, [WELL], started=True), control_pb2.HEALTH_STATE_DRAINING),
    ],
)
def test_health_is_the_readiness_of_the_services(report, state):
    response = health_of(report)

    assert (response.state, response.checks[0].state, response.checks[0].message) == (state, state, report.problem)
    assert [(check.name, check.message) for check in response.checks[1:]] == [(e.name, e.problem) for e in report.dependencies]


async def test_health_names_what_is_missing(control, engine):
    ready = await control.Health(control_pb2.HealthRequest())
    await engine.kill()

    async with asyncio.timeout(10):
        while (lost := await control.Health(control_pb2.HealthRequest())).state == control_pb2.HEALTH_STATE_READY:
            pass
    assert [check.name for check in ready.checks] == ["server", "tokenizer 0", "engine core 0"]
    assert lost.state == control_pb2.HEALTH_STATE_NOT_READY
    assert "No engine core is reachable" in lost.checks[0].message


async def test_a_probe_generates_one_token(control, engine):
    response = await control.Health(control_pb2.HealthRequest(include_inference_probe=True, model="fake"))

    assert (response.state, response.checks[-1].name) == (control_pb2.HEALTH_STATE_READY, "inference_probe")
    assert engine.requests[0].sampling_params.max_tokens == 1


async def test_a_failed_probe_makes_the_server_not_ready(control, engine):
    engine.reject = lambda _: Overloaded("full")

    response = await control.Health(control_pb2.HealthRequest(include_inference_probe=True))

    assert (response.state, response.checks[-1].message) == (control_pb2.HEALTH_STATE_NOT_READY, "full")


@pytest.mark.parametrize(
    ("role", "state"),
    [
        (control_pb2.ENGINE_ROLE_AGGREGATED, control_pb2.HEALTH_STATE_READY),
        (control_pb2.ENGINE_ROLE_DECODE, control_pb2.HEALTH_STATE_NOT_READY),
    ],
)
async def test_an_expected_role_is_compared(control, role, state):
    response = await control.Health(control_pb2.HealthRequest(role=role))

    assert (response.state, response.checks[-1].name, response.checks[-1].state) == (state, "role", state)


@pytest.mark.parametrize(
    "target", [control_pb2.AbortRequest(request_id="r1"), control_pb2.AbortRequest(all_requests=All())], ids=["one", "all"]
)
async def test_an_aborted_request_ends_as_cancelled(inference, control, engine, target):
    engine.pause()
    call = inference.Generate(long_request("r1"))
    await engine.until(lambda: engine.running)
    await engine.take(1)

    answer = await control.Abort(target)

    *_, last = [event async for event in call]
    assert answer.status == control_pb2.ABORT_STATUS_ABORTED
    assert (last.finished.reason, last.HasField("usage")) == (inference_pb2.FINISH_REASON_CANCELLED, True)
    await engine.until(lambda: engine.aborted)


async def test_an_abort_that_comes_late_succeeds_and_one_of_an_unknown_request_does_not(inference, control):
    request = long_request("r1")
    request.stopping.max_tokens = 2
    assert [event async for event in inference.Generate(request)]

    late = await control.Abort(control_pb2.AbortRequest(request_id="r1"))
    unknown = await refusal_of(control.Abort(control_pb2.AbortRequest(request_id="r2")))

    assert late.status == control_pb2.ABORT_STATUS_ALREADY_FINISHED
    assert unknown == (grpc.StatusCode.NOT_FOUND, "request_id")


async def test_a_refused_id_is_not_kept(inference, control):
    """Ended ids are kept by their number, so none may be longer than an id may be."""
    refused = [await refusal_of(inference.Generate(long_request("r" * 100_000)).read())]
    refused.append(await refusal_of(control.Abort(control_pb2.AbortRequest(request_id="r" * 100_000))))

    assert refused == [(grpc.StatusCode.INVALID_ARGUMENT, "request_id"), (grpc.StatusCode.NOT_FOUND, "request_id")]


def test_only_the_last_ended_requests_are_known():
    requests = OpenRequests(None, None, num_ended=2)
    for request_id in ("r1", "r2", "r3"):
        requests._note_ended(request_id)

    assert [requests.abort("r2"), requests.abort("r3")] == [False, False]
    with pytest.raises(NotFound):
        requests.abort("r1")


@pytest.mark.parametrize(
    ("target", "code", "field"),
    [
        (control_pb2.AbortRequest(), grpc.StatusCode.INVALID_ARGUMENT, "target"),
        (control_pb2.AbortRequest(kv_session=common_pb2.KvSessionRef()), grpc.StatusCode.NOT_FOUND, "kv_session"),
    ],
)
async def test_an_abort_needs_a_target_that_exists(control, target, code, field):
    assert await refusal_of(control.Abort(target)) == (code, field)


async def test_adapters_are_loaded_listed_and_unloaded(adaptable, engine):
    loaded = await load(adaptable, 7, "sql")
    again = await load(adaptable, 7, "sql")
    listed = await adaptable.ListLoras(control_pb2.ListLorasRequest())
    unloaded = await adaptable.UnloadLora(control_pb2.UnloadLoraRequest(lora_name="sql"))

    wanted = Lora(lora_id=7, lora_name="sql", source_path="/adapters/a")
    assert (loaded.adapter, loaded.already_loaded, again.already_loaded) == (wanted, False, True)
    assert (list(listed.adapters), unloaded.adapter) == ([wanted], wanted)
    assert engine.orders == [("load_lora", "sql", 7, "/adapters/a"), ("unload_lora", 7)]
    assert not (await adaptable.ListLoras(control_pb2.ListLorasRequest())).adapters


@pytest.mark.parametrize(
    ("number", "name", "path", "code", "field"),
    [
        (7, "other", "/adapters/a", grpc.StatusCode.ALREADY_EXISTS, "lora_id"),
        (8, "sql", "/adapters/a", grpc.StatusCode.ALREADY_EXISTS, "lora_name"),
        (7, "sql", "/adapters/b", grpc.StatusCode.ALREADY_EXISTS, "lora_name"),
        (8, "fake", "/adapters/b", grpc.StatusCode.ALREADY_EXISTS, "lora_name"),
        (0, "new", "/adapters/b", grpc.StatusCode.INVALID_ARGUMENT, "adapter.lora_id"),
        (2**32, "new", "/adapters/b", grpc.StatusCode.INVALID_ARGUMENT, "adapter.lora_id"),
        (8, "", "/adapters/b", grpc.StatusCode.INVALID_ARGUMENT, "adapter.lora_name"),
        (8, "new", "adapters/b", grpc.StatusCode.INVALID_ARGUMENT, "adapter.source_path"),
    ],
)
async def test_an_adapter_that_conflicts_or_is_wrong_is_refused(adaptable, engine, number, name, path, code, field):
    await load(adaptable, 7, "sql")

    assert await refusal_of(load(adaptable, number, name, path)) == (code, field)
    assert len(engine.orders) == 1


async def test_two_adapters_with_one_name_are_not_loaded_at_the_same_time(connect, engine, monkeypatch):
    """The second call arrives while the engine cores load the first adapter."""
    engine.supports_lora = True
    llm = await connect(allow_runtime_lora_updating=True)
    adapters, loads = LoraAdapters(ModelDirectory.alone(llm)), []
    began, go = asyncio.Event(), asyncio.Event()

    async def load(lora):
        loads.append(lora.lora_int_id)
        began.set()
        await go.wait()

    monkeypatch.setattr(llm.adapters, "load", load)
    messages = [Lora(lora_id=number, lora_name="sql", source_path="/adapters/a") for number in (7, 8)]
    first, second = (asyncio.create_task(adapters.load(message)) for message in messages)
    await began.wait()
    go.set()

    assert await first is False
    with pytest.raises(AlreadyExists):
        await second
    assert loads == [7]


async def test_an_unknown_adapter_cannot_be_unloaded(adaptable):
    call = adaptable.UnloadLora(control_pb2.UnloadLoraRequest(lora_name="x"))

    assert await refusal_of(call) == (grpc.StatusCode.NOT_FOUND, "lora_name")


@pytest.mark.parametrize("settings", [{}, {"allow_runtime_lora_updating": True}], ids=["not allowed", "no adapters"])
async def test_adapters_need_a_server_that_takes_them(serve_frontend, settings):
    async with (
        serve_frontend(listen="127.0.0.1:0", **settings) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        code, _ = await refusal_of(load(control_pb2_grpc.ControlStub(channel), 7, "sql"))

    assert code == grpc.StatusCode.FAILED_PRECONDITION


async def test_what_concerns_everybody_is_for_operators(serve_frontend, engine):
    async with (
        serve_frontend(listen="127.0.0.1:0", api_key=("user",), operator_api_key=("operator",)) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub, user = control_pb2_grpc.ControlStub(channel), (("authorization", "Bearer user"),)
        calls = (
            stub.Abort(control_pb2.AbortRequest(all_requests=All()), metadata=user),
            stub.LoadLora(control_pb2.LoadLoraRequest(), metadata=user),
            stub.UnloadLora(control_pb2.UnloadLoraRequest(), metadata=user),
            stub.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(), metadata=user),
        )
        codes = [await call.code() for call in calls]

    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 4
    assert not engine.orders


def told(number, *events, snapshot=False):
    return engine_core_pb2.SubscribeKvEventsResponse(
        sequence_number=number, events=events, snapshot=snapshot, timestamp_unix_s=1.5
    )


CLEARED = engine_core_pb2.KvCacheEvent(cleared=engine_core_pb2.KvBlocksCleared())
STORED = engine_core_pb2.KvCacheEvent(
    stored=engine_core_pb2.KvBlocksStored(
        block_hashes=[b"b" * 32, b"c" * 32],
        parent_block_hash=b"a" * 32,
        token_ids=pack_u32(range(8)),
        block_size=4,
        lora_name="sql",
        medium="GPU",
        group_index=1,
        cache_salt="salt",
        sliding_window=64,
    )
)
REMOVED = engine_core_pb2.KvCacheEvent(removed=engine_core_pb2.KvBlocksRemoved(block_hashes=[b"b" * 32], medium="CPU"))


async def take(number, call):
    return [(await call.read()).batch for _ in range(number)]


async def test_events_have_the_numbers_and_the_names_of_the_engine_core(control, engine):
    for each in (told(4, CLEARED, snapshot=True), told(5, STORED, REMOVED)):
        engine.kv_batches.put_nowait(each)

    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True, start_sequence_number=5))
    snapshot, change = await take(2, call)
    call.cancel()

    assert (snapshot.sequence_number, change.sequence_number, change.data_parallel_rank) == (4, 5, 0)
    assert (snapshot.timestamp_unix_nanos, engine.kv_starts[-1]) == (1_500_000_000, 0)
    assert snapshot.events[0].HasField("all_blocks_cleared")
    stored, removed = change.events[0].block_stored, change.events[1].block_removed
    assert [(each.value, each.encoding) for each in stored.block_hashes] == [(b"b" * 32, "bytes"), (b"c" * 32, "bytes")]
    assert (stored.parent_block_hash.value, list(stored.token_ids), stored.block_size) == (b"a" * 32, list(range(8)), 4)
    assert (stored.lora_name, stored.medium, stored.group_idx) == ("sql", kv_events_pb2.STORAGE_MEDIUM_GPU, 1)
    assert len(stored.extra_keys) == 0  # the salt is a key of the block that begins the sequence
    assert stored.kv_cache_spec_sliding_window == 64
    assert (removed.block_hashes[0].value, removed.medium) == (b"b" * 32, kv_events_pb2.STORAGE_MEDIUM_CPU_PINNED)


async def test_the_salt_is_a_key_of_the_block_that_begins_a_sequence(control, engine):
    begins = engine_core_pb2.KvCacheEvent()
    begins.CopyFrom(STORED)
    begins.stored.ClearField("parent_block_hash")
    engine.kv_batches.put_nowait(told(5, begins))

    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True))
    [batch] = await take(1, call)
    call.cancel()

    assert [list(each.values) for each in batch.events[0].block_stored.extra_keys] == [["salt"], []]


async def test_without_a_snapshot_events_begin_with_the_next_change_and_later_snapshots_are_sent(control, engine):
    first = [told(4, CLEARED, snapshot=True), told(4, STORED, snapshot=True), told(5, STORED)]
    for each in (*first, told(9, CLEARED, snapshot=True)):
        engine.kv_batches.put_nowait(each)

    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest())
    numbers = [batch.sequence_number for batch in await take(2, call)]
    call.cancel()

    assert numbers == [5, 9]


async def test_events_are_replayed_from_a_number(control, engine):
    for each in (told(7, STORED), told(8, REMOVED)):
        engine.kv_batches.put_nowait(each)

    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(data_parallel_ranks=[0], start_sequence_number=7))
    numbers = [batch.sequence_number for batch in await take(2, call)]
    call.cancel()

    assert (numbers, engine.kv_starts[-1]) == ([7, 8], 7)


async def test_ranks_of_events_and_loads_are_those_that_requests_are_pinned_to(rank_1_and_0):
    [second, first], channel = rank_1_and_0
    first.load_fields, second.load_fields = {"num_gpu_blocks": 10}, {"num_gpu_blocks": 20}
    first.kv_batches.put_nowait(told(10, CLEARED, snapshot=True))
    second.kv_batches.put_nowait(told(20, CLEARED, snapshot=True))
    stub = control_pb2_grpc.ControlStub(channel)

    wanted = kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True, data_parallel_ranks=[0])
    call = stub.SubscribeKvEvents(wanted)
    [batch] = await take(1, call)
    call.cancel()
    load = await stub.GetLoad(control_pb2.GetLoadRequest(include_per_rank=True))
    wanted.data_parallel_ranks[:] = [2]
    refused = await refusal_of(stub.SubscribeKvEvents(wanted).read())
    pinned = inference_pb2_grpc.InferenceStub(channel).Generate(
        inference_pb2.GenerateRequest(prompt="hi"), metadata=(("openengine-target-dp-rank", "0"),)
    )
    assert [event async for event in pinned]

    assert (batch.sequence_number, batch.data_parallel_rank) == (10, 0)
    assert [(rank.data_parallel_rank, rank.total_kv_blocks) for rank in load.ranks] == [(0, 10), (1, 20)]
    assert refused == (grpc.StatusCode.INVALID_ARGUMENT, "data_parallel_ranks")
    assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_a_lost_engine_core_keeps_no_events_of_the_others_back(rank_1_and_0):
    [second, first], channel = rank_1_and_0
    stub = control_pb2_grpc.ControlStub(channel)
    await second.kill()
    async with asyncio.timeout(10):
        while len((await stub.GetLoad(control_pb2.GetLoadRequest(include_per_rank=True))).ranks) == 2:
            pass
    first.kv_batches.put_nowait(told(10, CLEARED, snapshot=True))

    call = stub.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True))
    [batch] = await take(1, call)
    await second.start()
    last = await call.read()

    assert batch.data_parallel_rank == 0
    assert (last.error.retryable, last.error.message) == (True, "An engine core has joined; subscribe again.")


async def test_a_rank_that_does_not_exist_is_refused(control):
    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(data_parallel_ranks=[1]))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()

    assert from_rpc_error(caught.value).field == "data_parallel_ranks"


async def test_the_loss_of_an_engine_core_is_the_last_event(control, engine):
    engine.kv_batches.put_nowait(told(1, CLEARED, snapshot=True))
    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True))
    await take(1, call)

    await engine.kill()
    last, end = await call.read(), await call.read()

    assert (last.error.code, last.error.retryable) == (common_pb2.ERROR_CODE_INTERNAL, True)
    assert (end, await call.code()) == (grpc.aio.EOF, grpc.StatusCode.OK)


@pytest.mark.parametrize(
    ("service", "method"),
    [("Inference", "Embed"), ("Inference", "Classify"), ("Inference", "Score"), ("Control", "Drain")],
)
async def test_methods_that_are_not_served_are_unimplemented(channel, service, method):
    call = channel.unary_unary(f"/openengine.v1.{service}/{method}")(b"")

    assert await call.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_the_port_knows_the_health_of_both_services(channel):
    check = health_pb2_grpc.HealthStub(channel).Check
    names = ("openengine.v1.Inference", "openengine.v1.Control")

    states = [(await check(health_pb2.HealthCheckRequest(service=name))).status for name in names]

    assert states == [health_pb2.HealthCheckResponse.SERVING] * 2
