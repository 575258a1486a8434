"""vllm.grpc.engine.VllmEngine as the gateway smg uses it: messages, streams, aborts, statuses."""

import asyncio

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

from tests.frontend.fakes import EOS, TEXT
from tetrad.frontend.api.http.sse import rendering
from tetrad.services.request_context import VALID_REQUEST_ID
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import engine_core_pb2, inference_pb2, inference_pb2_grpc, types_pb2

IDS = list(TEXT.encode())


@pytest.fixture
def stub(channel):
    return vllm_engine_pb2_grpc.VllmEngineStub(channel)


def request(*, ids=(1, 2), stream=True, params=None, **fields):
    return vllm_engine_pb2.GenerateRequest(
        tokenized=vllm_engine_pb2.TokenizedInput(original_text="hi", input_ids=ids),
        # As smg sends them.
        sampling_params=vllm_engine_pb2.SamplingParams(
            **({"top_p": 1.0, "repetition_penalty": 1.0, "n": 1, "max_tokens": 9, "skip_special_tokens": True} | (params or {}))
        ),
        stream=stream,
        **fields,
    )


async def answers_of(call):
    return [response async for response in call]


async def test_a_stream_has_chunks_of_new_ids_and_a_complete_without_any(stub):
    *chunks, last = await answers_of(stub.Generate(request()))

    assert [i for each in chunks for i in each.chunk.token_ids] == IDS[:9]
    assert sum(each.chunk.completion_tokens for each in chunks) == 9
    assert {each.chunk.prompt_tokens for each in chunks} == {2}
    assert (last.complete.finish_reason, list(last.complete.output_ids)) == ("length", [])
    assert (last.complete.prompt_tokens, last.complete.completion_tokens) == (2, 9)


async def test_without_a_stream_there_is_one_complete_with_everything(stub):
    [answer] = await answers_of(stub.Generate(request(stream=False, params={"logprobs": 1})))

    complete = answer.complete
    assert list(complete.output_ids) == IDS[:9]
    assert (complete.finish_reason, complete.completion_tokens) == ("length", 9)
    assert len(complete.output_logprobs.token_logprobs) == 9


async def test_each_of_n_outputs_has_its_own_complete(stub):
    answers = await answers_of(stub.Generate(request(params={"n": 3})))

    completes = [each.complete for each in answers if each.HasField("complete")]
    assert sorted(complete.index for complete in completes) == [0, 1, 2]
    assert {complete.completion_tokens for complete in completes} == {9}


@pytest.mark.parametrize("num_many", [1, 4096], ids=["in the side thread", "in the event loop"])
async def test_logprobs_are_columns_and_the_first_of_the_prompt_is_unknown(stub, monkeypatch, num_many):
    monkeypatch.setattr(rendering, "_MANY", num_many)
    params = {"logprobs": 2, "prompt_logprobs": 1, "max_tokens": 1}

    chunk = (await answers_of(stub.Generate(request(ids=[1, 2, 3], params=params))))[0].chunk

    output, prompt = chunk.output_logprobs, chunk.input_logprobs
    assert (list(output.token_logprobs), list(output.token_ids)) == ([-0.5], IDS[:1])
    assert [(list(top.token_ids), list(top.values)) for top in output.top_logprobs] == [([84, 85], [-0.5, -1.5])]
    assert [each.HasField("value") for each in prompt.token_logprobs] == [False, True, True]
    assert (list(prompt.token_ids), len(prompt.top_logprobs)) == ([1, 2, 3], 3)


async def test_the_engine_is_asked_for_what_the_message_says(stub, engine):
    params = {"temperature": 0.7, "top_k": 5, "min_p": 0.25, "presence_penalty": 0.5, "seed": 3, "stop_token_ids": [7]}
    params |= {"ignore_eos": True, "logit_bias": {65: 2.0}, "min_tokens": 2, "regex": "[a-z]+"}

    await answers_of(stub.Generate(request(params=params, request_id="theirs")))

    [asked] = engine.requests
    sampling = asked.sampling_params
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (pytest.approx(0.7), 5, 3)
    assert (sampling.min_p, sampling.presence_penalty, sampling.min_tokens) == (0.25, 0.5, 2)
    assert (dict(sampling.logit_bias), sampling.structured_outputs.regex) == ({65: 2.0}, "[a-z]+")
    assert 7 in sampling.stop_token_ids and sampling.ignore_eos
    assert asked.external_req_id == "theirs"
    assert unpack_u32(asked.prompt_token_ids) == [1, 2]


@pytest.mark.parametrize(("reasoning_parser", "start_after"), [("auto", b""), ("qwen3", b"</think>")])
async def test_a_constraint_waits_for_the_end_of_reasoning_if_its_format_is_named(
    serve_frontend, engine, reasoning_parser, start_after
):
    settings = {"listen": "127.0.0.1:0", "reasoning_parser": reasoning_parser}
    async with serve_frontend(**settings) as frontend, open_channel(frontend.grpc_address) as channel:
        given = request(ids=list(b"<think>"), params={"regex": "[a-z]+"})
        await answers_of(vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(given))

    assert bytes(engine.requests[0].sampling_params.structured_outputs.start_after_token_ids) == start_after


async def test_what_a_message_leaves_out_is_as_the_model_s_authors_say(stub, tokenizer, serve_frontend, engine):
    tokenizer.generation_config = '{"temperature": 0.25, "top_k": 7}'
    async with serve_frontend(listen="127.0.0.1:0") as frontend, open_channel(frontend.grpc_address) as channel:
        await answers_of(vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(request(params={"top_p": 0.0})))

    sampling = engine.requests[0].sampling_params
    assert (sampling.temperature, sampling.top_k) == (0.25, 7)


async def test_ids_need_no_tokenizer_unless_there_are_stop_strings(stub, tokenizer):
    await answers_of(stub.Generate(request()))
    assert (tokenizer.num_calls, tokenizer.num_appends) == (0, 0)

    *_, last = await answers_of(stub.Generate(request(params={"stop": ["quick"], "max_tokens": 40})))

    assert (last.complete.finish_reason, last.complete.matched_stop_str) == ("stop", "quick")
    assert last.complete.completion_tokens == TEXT.index("quick") + len("quick")


@pytest.mark.parametrize(("stop_ids", "matched"), [([IDS[3]], IDS[3]), ([], 0)])
async def test_a_stop_by_id_is_named_and_one_by_end_of_text_is_not(stub, engine, stop_ids, matched):
    engine.reply = lambda _, position: IDS[position] if position < 5 else EOS

    *_, last = await answers_of(stub.Generate(request(params={"stop_token_ids": stop_ids})))

    assert last.complete.finish_reason == "stop"
    assert last.complete.WhichOneof("matched_stop") == ("matched_token_id" if matched else None)
    assert last.complete.matched_token_id == matched


@pytest.mark.parametrize("stream", [True, False])
async def test_abort_frees_the_request_and_ends_its_open_call(stub, engine, stream):
    engine.pause()
    call = stub.Generate(request(request_id="r1", stream=stream, params={"max_tokens": 400}))
    await engine.until(lambda: engine.running)
    await engine.take(2)

    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1", "unknown"]))

    *_, last = await answers_of(call)
    assert last.complete.finish_reason == "abort"
    await engine.until(lambda: engine.aborted)
    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1"]))


@pytest.mark.parametrize("request_id", ["a|b-01a2176c", "x" * 129])
async def test_any_id_of_a_gateway_is_taken_and_can_be_aborted(stub, engine, request_id):
    """smg makes ids of its clients' X-Request-Id, whose other forms HTTP ignores: no reason to refuse a request."""
    engine.pause()
    call = stub.Generate(request(request_id=request_id))
    await engine.until(lambda: engine.running)

    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=[request_id]))

    *_, last = await answers_of(call)
    assert last.complete.finish_reason == "abort"
    assert VALID_REQUEST_ID.fullmatch(engine.requests[0].external_req_id)


async def test_abort_ends_no_request_of_another_api(stub, frontend, engine):
    engine.pause()
    body, headers = {"prompt": "hi", "max_tokens": 3}, {"x-request-id": "r1"}
    asking = asyncio.create_task(frontend.http.post("/v1/completions", json=body, headers=headers))
    await engine.until(lambda: engine.running)

    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1"]))

    await engine.allow(None)
    [choice] = (await asking).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT[:3], "length")
    assert not engine.aborted


async def test_abort_ends_its_own_of_two_requests_with_one_id(stub, channel, engine):
    engine.pause()
    params = types_pb2.SamplingParams(max_tokens=3)
    other = inference_pb2.GenerateRequest(text="hi", request_id="r1", sampling_params=params)
    asking = asyncio.create_task(answers_of(inference_pb2_grpc.InferenceServiceStub(channel).Generate(other)))
    await engine.until(lambda: len(engine.running) == 1)
    call = stub.Generate(request(request_id="r1"))
    await engine.until(lambda: len(engine.running) == 2)

    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1"]))

    *_, last = await answers_of(call)
    await engine.allow(None)
    assert last.complete.finish_reason == "abort"
    assert (await asking)[-1].finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_abort_of_a_request_whose_prompt_is_still_made_into_tokens(stub, tokenizer, engine):
    engine.pause()
    tokenizer.hung.clear()
    message = request(request_id="r1")
    message.text = "hi"
    call = stub.Generate(message)
    async with asyncio.timeout(10):
        while not tokenizer.num_calls:
            await stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest())

    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1"]))
    tokenizer.hung.set()

    async with asyncio.timeout(10):
        *_, last = await answers_of(call)
    assert (last.complete.finish_reason, last.complete.completion_tokens) == ("abort", 0)
    assert not engine.running


async def test_a_cancelled_call_frees_its_request(stub, engine):
    engine.pause()
    call = stub.Generate(request(params={"max_tokens": 400}))
    await engine.until(lambda: engine.running)
    await engine.allow(2)
    await call.read()

    call.cancel()

    await engine.until(lambda: engine.aborted)


async def test_a_client_that_reads_too_late_has_a_status_even_if_the_first_message_was_held_up(serve_frontend, engine):
    engine.step_delay_s = 0.02  # else it is done before anybody notices
    async with (
        serve_frontend(listen="127.0.0.1:0", slow_client_timeout_s=0.3, max_logprobs=60) as frontend,
        grpc.aio.insecure_channel(frontend.grpc_address, options=[("grpc.http2.bdp_probe", 0)]) as channel,
    ):
        # Longer than a window: the log-probabilities of a long prompt.
        params = {"prompt_logprobs": 60, "max_tokens": 100, "ignore_eos": True}
        call = vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(request(ids=[1] * 400, params=params))
        await engine.until(lambda: engine.aborted)

        async with asyncio.timeout(10):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answers_of(call)

    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (request(ids=[]), "prompt"),
        (request(ids=[5000]), "prompt"),
        (request(params={"temperature": 3.0}), "temperature"),
        (request(params={"json_schema": "{"}), "structured_outputs"),
        (request(data_parallel_rank=4), "data_parallel_rank"),
        (request(data_parallel_rank=-1), "data_parallel_rank"),
        (request(mm_inputs=vllm_engine_pb2.MultimodalInputs()), "mm_inputs"),
        (request(kv_transfer_params_json="{}"), "kv_transfer_params_json"),
        (vllm_engine_pb2.GenerateRequest(), "input"),
    ],
)
async def test_a_wrong_request_is_an_invalid_argument_that_names_its_field(stub, message, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers_of(stub.Generate(message))

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).field == field


async def test_one_request_too_many_is_resource_exhausted(serve_frontend, engine):
    engine.pause()
    async with (
        serve_frontend(listen="127.0.0.1:0", max_num_requests=1) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        waiting = stub.Generate(request())
        await engine.until(lambda: engine.running)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answers_of(stub.Generate(request()))
        await engine.allow(None)
        await answers_of(waiting)

    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_deadline_of_the_call_is_one_of_the_request(stub, engine):
    engine.pause()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers_of(stub.Generate(request(), timeout=0.3))

    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await engine.until(lambda: engine.aborted)


async def test_facts(stub):
    health = await stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest())
    model = await stub.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest())
    server = await stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
    loads = await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest())

    assert (health.healthy, health.message) == (True, "OK")
    assert (model.model_path, model.served_model_name, model.max_context_length) == ("fake", "fake", 512)
    assert (model.is_generation, list(model.eos_token_ids)) == (True, [EOS])
    assert (server.server_type, server.data_parallel_size, server.max_num_seqs) == ("vllm-grpc", 1, 64)
    assert [load.dp_rank for load in loads.loads] == [0]


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


async def test_utilization_is_that_of_the_kv_cache_as_vllm_s_servicer_tells_it(stub, engine):
    engine.load_fields = {"stats": engine_core_pb2.SchedulerStats(num_running_reqs=32, kv_cache_usage=0.25)}

    [load] = (await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest())).loads

    assert (load.num_running_reqs, load.max_running_requests, load.token_usage, load.utilization) == (32, 64, 0.25, 0.25)


async def test_loads_need_the_operators_ports(serve_frontend):
    async with (
        serve_frontend(listen="127.0.0.1:0", engine_admin_targets=()) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await vllm_engine_pb2_grpc.VllmEngineStub(channel).GetLoads(vllm_engine_pb2.GetLoadsRequest())

    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_health_says_what_is_missing(stub, engine):
    await engine.kill()

    async with asyncio.timeout(10):
        while (answer := await stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest())).healthy:
            pass
    assert "No engine core is reachable" in answer.message


async def test_an_operator_flushes_the_cache(stub, engine):
    done = await stub.FlushCache(common_pb2.FlushCacheRequest())

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


async def test_an_operator_records_the_engines(stub):
    started = await stub.StartProfile(common_pb2.StartProfileRequest())
    stopped = await stub.StopProfile(common_pb2.StopProfileRequest())

    assert started.success
    assert (stopped.success, stopped.message) == (True, "/far/away/profile-worker-1.json")


async def test_a_recording_has_no_options(stub):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.StartProfile(common_pb2.StartProfileRequest(output_dir="/tmp"))

    assert from_rpc_error(caught.value).field == "output_dir"


async def test_embeddings_are_not_served(stub):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Embed(vllm_engine_pb2.EmbedRequest())

    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_keys_are_asked_for_here_too(serve_frontend):
    async with (
        serve_frontend(listen="127.0.0.1:0", api_key=("secret",)) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answers_of(stub.Generate(request()))
        answers = await answers_of(stub.Generate(request(), metadata=(("authorization", "Bearer secret"),)))

    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert answers


async def test_ranks_of_events_and_loads_are_those_that_requests_are_pinned_to(rank_1_and_0):
    engines, channel = rank_1_and_0
    stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
    for rank, engine in zip((1, 0), engines, strict=True):
        engine.load_fields = {"num_waiting_tokens": rank}
        cleared = engine_core_pb2.KvCacheEvent(cleared=engine_core_pb2.KvBlocksCleared())
        engine.kv_batches.put_nowait(engine_core_pb2.SubscribeKvEventsResponse(events=[cleared], timestamp_unix_s=rank))

    loads = (await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest())).loads
    call = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
    batches = [await call.read() for _ in range(2)]
    call.cancel()
    await answers_of(stub.Generate(request(data_parallel_rank=0)))

    assert sorted((load.dp_rank, load.num_waiting_uncached_tokens) for load in loads) == [(0, 0), (1, 1)]
    assert sorted((batch.dp_rank, batch.timestamp) for batch in batches) == [(0, 0.0), (1, 1.0)]
    assert [len(engine.requests) for engine in engines] == [0, 1]


CLEARED = engine_core_pb2.KvCacheEvent(cleared=engine_core_pb2.KvBlocksCleared())


async def test_a_lost_engine_core_keeps_no_events_of_the_others_back(rank_1_and_0):
    [second, first], channel = rank_1_and_0
    stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
    await second.kill()
    async with asyncio.timeout(10):
        while len((await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest())).loads) == 2:
            pass
    call = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())

    async with asyncio.timeout(10):
        for _ in range(2):
            first.kv_batches.put_nowait(engine_core_pb2.SubscribeKvEventsResponse(events=[CLEARED]))
            assert (await call.read()).dp_rank == 0
        await second.start()
        status = await call.code()

    assert status == grpc.StatusCode.UNAVAILABLE  # a gateway subscribes again then, to both
