"""vllm.Inference and vllm.Control, as vllm-router uses them."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.frontend.api.gateways.calls import answers_of
from tests.frontend.fakes import EOS, TEXT
from tetrad.frontend.api.http.sse import rendering
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.vllm_api import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc

IDS = list(TEXT.encode())
Options = inference_pb2.ResponseOptions
Stopping = inference_pb2.StoppingCriteria


@pytest.fixture
def stub(channel):
    return inference_pb2_grpc.InferenceStub(channel)


@pytest.fixture
def control(channel):
    return control_pb2_grpc.ControlStub(channel)


def request(**fields):
    defaults = {"token_ids": inference_pb2.TokenIds(ids=[1, 2]), "stopping": Stopping(max_new_tokens=9)}
    return inference_pb2.GenerateRequest(**(defaults | fields))


async def test_a_stream_of_ids_as_the_router_asks_for_it(stub):
    options = Options(output_text=False, output_token_ids=True)

    answers = await answers_of(stub.GenerateStream(request(response=options)))

    assert [i for each in answers for i in each.outputs.token_ids] == IDS[:9]
    assert {each.outputs.text for each in answers} == {""}
    assert [each.HasField("prompt_info") for each in answers] == [True] + [False] * (len(answers) - 1)
    assert answers[0].prompt_info.num_prompt_tokens == 2
    finish = answers[-1].outputs.finish_info
    assert (finish.finish_reason, finish.num_output_tokens) == (inference_pb2.FinishInfo.LENGTH, 9)


async def test_text_is_shown_unless_it_is_not_wanted(stub):
    answer = await stub.Generate(request(text="hi"))

    assert (answer.outputs.text, answer.outputs.num_tokens, list(answer.outputs.token_ids)) == (TEXT[:9], 9, [])


@pytest.mark.parametrize("num_many", [1, 4096], ids=["in the side thread", "in the event loop"])
async def test_logprobs_ranks_and_candidates(stub, monkeypatch, num_many):
    monkeypatch.setattr(rendering, "_MANY", num_many)
    options = Options(
        output_logprobs=True,
        output_candidates=inference_pb2.CandidateTokens(top_n=2),
        prompt_logprobs=True,
        prompt_token_ids=True,
    )

    answer = await stub.Generate(request(response=options, stopping=Stopping(max_new_tokens=1)))

    outputs, prompt = answer.outputs, answer.prompt_info
    assert (list(outputs.logprobs), list(outputs.ranks)) == ([-0.5], [1])
    assert [(token.id, token.logprob) for token in outputs.candidate_tokens[0].tokens] == [(IDS[0] + 1, -1.5)]
    assert (list(prompt.logprobs), list(prompt.ranks), list(prompt.token_ids)) == ([0.0, -0.5], [0, 1], [1, 2])


async def test_the_engine_is_asked_for_what_the_message_says(stub, engine):
    message = request(
        temperature=0.7,
        sampling=inference_pb2.RandomSampling(top_k=5, top_p=0.5, seed=-3),
        decoding=inference_pb2.DecodingParameters(frequency_penalty=0.5, logit_bias={65: 2.0}, json='{"type": "object"}'),
        stopping=Stopping(max_new_tokens=9, min_new_tokens=2, stop_token_ids=[7], ignore_eos=True),
        kv=inference_pb2.KVCacheParameters(bypass_prefix_cache=True, cache_salt="salt"),
        truncate_prompt_tokens=1,
        priority=4,
        request_id="theirs",
    )

    await answers_of(stub.GenerateStream(message, metadata=(("x-data-parallel-rank", "0"),)))

    [asked] = engine.requests
    sampling = asked.sampling_params
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (pytest.approx(0.7), 5, 0.5, -3)
    assert (sampling.frequency_penalty, dict(sampling.logit_bias), sampling.min_tokens) == (0.5, {65: 2.0}, 2)
    assert sampling.structured_outputs.json_schema == '{"type": "object"}'
    assert (asked.cache_salt, asked.priority, asked.external_req_id, asked.data_parallel_rank) == ("salt", 4, "theirs", 0)
    assert unpack_u32(asked.prompt_token_ids) == [2]
    assert sampling.skip_reading_prefix_cache


async def test_without_a_temperature_it_is_greedy_and_without_a_budget_the_context_is_it(stub, engine):
    await answers_of(stub.GenerateStream(inference_pb2.GenerateRequest(text="hi")))

    sampling = engine.requests[0].sampling_params
    assert (sampling.temperature, sampling.max_tokens) == (0.0, 510)


async def test_several_outputs_need_a_stream(stub):
    message = request(sampling=inference_pb2.RandomSampling(num_sequences=2))

    answers = await answers_of(stub.GenerateStream(message))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(message)

    assert {each.outputs.index for each in answers} == {0, 1}
    assert from_rpc_error(caught.value).field == "num_sequences"


@pytest.mark.parametrize(
    ("stopping", "reason", "value"),
    [
        (Stopping(max_new_tokens=40, stop_strings=["quick"]), "stop_string", "quick"),
        (Stopping(max_new_tokens=40, stop_token_ids=[IDS[3]]), "stop_token_id", IDS[3]),
        (Stopping(max_new_tokens=40), "eos_token_id", EOS),
    ],
)
async def test_what_stopped_an_output_is_named(stub, engine, stopping, reason, value):
    engine.reply = lambda _, position: IDS[position] if position < 12 else EOS

    finish = (await stub.Generate(request(stopping=stopping))).outputs.finish_info

    assert finish.finish_reason == inference_pb2.FinishInfo.STOP
    assert (finish.WhichOneof("stop_reason"), getattr(finish, reason)) == (reason, value)


async def test_an_output_that_its_grammar_ended_names_no_token(stub, engine):
    engine.grammar_ends_after = 5

    finish = (await stub.Generate(request())).outputs.finish_info

    assert (finish.finish_reason, finish.num_output_tokens) == (inference_pb2.FinishInfo.STOP, 5)
    assert finish.WhichOneof("stop_reason") is None


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"model": "x"}, grpc.StatusCode.NOT_FOUND, "model"),
        ({"lora_name": "x"}, grpc.StatusCode.NOT_FOUND, "lora_name"),
        ({"media": [inference_pb2.MediaItem()]}, grpc.StatusCode.INVALID_ARGUMENT, "media"),
        ({"temperature": 3.0}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"token_ids": None}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
    ],
)
async def test_errors_have_status_and_field(stub, fields, code, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers_of(stub.GenerateStream(request(**fields)))

    assert caught.value.code() == code
    assert from_rpc_error(caught.value).field == field


@pytest.mark.parametrize("rank", ["one", "-1", "9" * 5000])
async def test_a_rank_that_is_no_number_is_refused(stub, rank):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers_of(stub.GenerateStream(request(), metadata=(("x-data-parallel-rank", rank),)))

    assert from_rpc_error(caught.value).field == "x-data-parallel-rank"


async def test_control_aborts_requests_of_inference(stub, control, engine):
    engine.pause()
    call = stub.GenerateStream(request(request_id="r1", stopping=Stopping(max_new_tokens=400)))
    await engine.until(lambda: engine.running)
    await engine.take(1)

    await control.Abort(control_pb2.AbortRequest(request_ids=["r1"]))

    *_, last = await answers_of(call)
    assert last.outputs.finish_info.finish_reason == inference_pb2.FinishInfo.ABORTED
    await engine.until(lambda: engine.aborted)


async def test_a_dropped_stream_frees_its_request(stub, engine):
    engine.pause()
    call = stub.GenerateStream(request(stopping=Stopping(max_new_tokens=400)))
    await engine.until(lambda: engine.running)
    await engine.allow(2)
    await call.read()

    call.cancel()

    await engine.until(lambda: engine.aborted)


async def test_facts_and_health(control, channel):
    server = await control.GetServerInfo(control_pb2.GetServerInfoRequest())
    model = await control.GetModelInfo(control_pb2.GetModelInfoRequest())
    check = health_pb2_grpc.HealthStub(channel).Check
    states = [(await check(health_pb2.HealthCheckRequest(service=name))).status for name in ("vllm.Inference", "vllm.Control")]

    assert (server.max_model_len, server.kv_block_size, server.parallelism.data_parallel_size) == (512, 16, 1)
    assert (model.served_model_name, model.supports_token_ids_input) == ("fake", True)
    assert states == [health_pb2.HealthCheckResponse.SERVING] * 2


async def test_operators_pause_and_resume(control, engine):
    await control.PauseGeneration(control_pb2.PauseGenerationRequest(mode=control_pb2.PAUSE_MODE_KEEP))
    paused = await control.IsPaused(control_pb2.IsPausedRequest())
    await control.ResumeGeneration(control_pb2.ResumeGenerationRequest())
    resumed = await control.IsPaused(control_pb2.IsPausedRequest())

    assert (paused.paused, resumed.paused) == (True, False)


async def test_a_mode_that_is_none_is_refused(control):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await control.PauseGeneration(control_pb2.PauseGenerationRequest(mode=17))

    assert from_rpc_error(caught.value).field == "mode"


async def test_a_server_that_takes_adapters_says_so(engine, serve_frontend):
    engine.supports_lora = True
    async with serve_frontend(listen="127.0.0.1:0") as frontend, open_channel(frontend.grpc_address) as channel:
        model = await control_pb2_grpc.ControlStub(channel).GetModelInfo(control_pb2.GetModelInfoRequest())

    assert model.supports_lora
