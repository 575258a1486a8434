"""openengine.v1.Control: discovery, load, health, aborts, and the calls that need an operator key."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.frontend.api.gateways.calls import refusal_of
from tetrad.frontend.api.gateways.openengine_control.health import health_of
from tetrad.frontend.api.gateways.openengine_inference.open_requests import OpenRequests
from tetrad.frontend.llm.readiness import Dependency, Report
from tetrad.openengine_api import common_pb2, control_pb2, control_pb2_grpc, inference_pb2, kv_events_pb2
from tetrad.services.errors import NotFound, Overloaded
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2

All = control_pb2.AllRequests


def long_request(request_id):
    stopping = inference_pb2.StoppingOptions(max_tokens=400)
    return inference_pb2.GenerateRequest(request_id=request_id, prompt="hi", stopping=stopping)


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
