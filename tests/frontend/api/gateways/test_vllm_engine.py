"""vllm.grpc.engine.VllmEngine as the gateway smg uses it: completions, streams, aborts, statuses."""

import asyncio

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from tests.frontend.api.gateways.calls import answers_of
from tests.frontend.api.gateways.requests import vllm_engine_request as request
from tests.frontend.fakes import EOS, TEXT
from tetrad.frontend.api.http.sse import rendering
from tetrad.services.request_context import VALID_REQUEST_ID
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

IDS = list(TEXT.encode())


async def test_a_stream_has_chunks_of_new_ids_and_a_complete_without_any(vllm_engine):
    *chunks, last = await answers_of(vllm_engine.Generate(request()))

    assert [i for each in chunks for i in each.chunk.token_ids] == IDS[:9]
    assert sum(each.chunk.completion_tokens for each in chunks) == 9
    assert {each.chunk.prompt_tokens for each in chunks} == {2}
    assert (last.complete.finish_reason, list(last.complete.output_ids)) == ("length", [])
    assert (last.complete.prompt_tokens, last.complete.completion_tokens) == (2, 9)


async def test_without_a_stream_there_is_one_complete_with_everything(vllm_engine):
    [answer] = await answers_of(vllm_engine.Generate(request(stream=False, params={"logprobs": 1})))

    complete = answer.complete
    assert list(complete.output_ids) == IDS[:9]
    assert (complete.finish_reason, complete.completion_tokens) == ("length", 9)
    assert len(complete.output_logprobs.token_logprobs) == 9


async def test_each_of_n_outputs_has_its_own_complete(vllm_engine):
    answers = await answers_of(vllm_engine.Generate(request(params={"n": 3})))

    completes = [each.complete for each in answers if each.HasField("complete")]
    assert sorted(complete.index for complete in completes) == [0, 1, 2]
    assert {complete.completion_tokens for complete in completes} == {9}


@pytest.mark.parametrize("num_many", [1, 4096], ids=["in the side thread", "in the event loop"])
async def test_logprobs_are_columns_and_the_first_of_the_prompt_is_unknown(vllm_engine, monkeypatch, num_many):
    monkeypatch.setattr(rendering, "_MANY", num_many)
    params = {"logprobs": 2, "prompt_logprobs": 1, "max_tokens": 1}

    chunk = (await answers_of(vllm_engine.Generate(request(ids=[1, 2, 3], params=params))))[0].chunk

    output, prompt = chunk.output_logprobs, chunk.input_logprobs
    assert (list(output.token_logprobs), list(output.token_ids)) == ([-0.5], IDS[:1])
    assert [(list(top.token_ids), list(top.values)) for top in output.top_logprobs] == [([84, 85], [-0.5, -1.5])]
    assert [each.HasField("value") for each in prompt.token_logprobs] == [False, True, True]
    assert (list(prompt.token_ids), len(prompt.top_logprobs)) == ([1, 2, 3], 3)


async def test_the_engine_is_asked_for_what_the_message_says(vllm_engine, engine):
    params = {"temperature": 0.7, "top_k": 5, "min_p": 0.25, "presence_penalty": 0.5, "seed": 3, "stop_token_ids": [7]}
    params |= {"ignore_eos": True, "logit_bias": {65: 2.0}, "min_tokens": 2, "regex": "[a-z]+"}

    await answers_of(vllm_engine.Generate(request(params=params, request_id="theirs")))

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


async def test_what_a_message_leaves_out_is_as_the_model_s_authors_say(vllm_engine, tokenizer, serve_frontend, engine):
    tokenizer.generation_config = '{"temperature": 0.25, "top_k": 7}'
    async with serve_frontend(listen="127.0.0.1:0") as frontend, open_channel(frontend.grpc_address) as channel:
        await answers_of(vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(request(params={"top_p": 0.0})))

    sampling = engine.requests[0].sampling_params
    assert (sampling.temperature, sampling.top_k) == (0.25, 7)


async def test_ids_need_no_tokenizer_unless_there_are_stop_strings(vllm_engine, tokenizer):
    await answers_of(vllm_engine.Generate(request()))
    assert (tokenizer.num_calls, tokenizer.num_appends) == (0, 0)

    *_, last = await answers_of(vllm_engine.Generate(request(params={"stop": ["quick"], "max_tokens": 40})))

    assert (last.complete.finish_reason, last.complete.matched_stop_str) == ("stop", "quick")
    assert last.complete.completion_tokens == TEXT.index("quick") + len("quick")


@pytest.mark.parametrize(("stop_ids", "matched"), [([IDS[3]], IDS[3]), ([], 0)])
async def test_a_stop_by_id_is_named_and_one_by_end_of_text_is_not(vllm_engine, engine, stop_ids, matched):
    engine.reply = lambda _, position: IDS[position] if position < 5 else EOS

    *_, last = await answers_of(vllm_engine.Generate(request(params={"stop_token_ids": stop_ids})))

    assert last.complete.finish_reason == "stop"
    assert last.complete.WhichOneof("matched_stop") == ("matched_token_id" if matched else None)
    assert last.complete.matched_token_id == matched


@pytest.mark.parametrize("stream", [True, False])
async def test_abort_frees_the_request_and_ends_its_open_call(vllm_engine, engine, stream):
    engine.pause()
    call = vllm_engine.Generate(request(request_id="r1", stream=stream, params={"max_tokens": 400}))
    await engine.until(lambda: engine.running)
    await engine.take(2)

    await vllm_engine.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1", "unknown"]))

    *_, last = await answers_of(call)
    assert last.complete.finish_reason == "abort"
    await engine.until(lambda: engine.aborted)
    await vllm_engine.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1"]))


@pytest.mark.parametrize("request_id", ["a|b-01a2176c", "x" * 129])
async def test_any_id_of_a_gateway_is_taken_and_can_be_aborted(vllm_engine, engine, request_id):
    """smg makes ids of its clients' X-Request-Id, whose other forms HTTP ignores: no reason to refuse a request."""
    engine.pause()
    call = vllm_engine.Generate(request(request_id=request_id))
    await engine.until(lambda: engine.running)

    await vllm_engine.Abort(vllm_engine_pb2.AbortRequest(request_ids=[request_id]))

    *_, last = await answers_of(call)
    assert last.complete.finish_reason == "abort"
    assert VALID_REQUEST_ID.fullmatch(engine.requests[0].external_req_id)


async def test_abort_ends_no_request_of_another_api(vllm_engine, frontend, engine):
    engine.pause()
    body, headers = {"prompt": "hi", "max_tokens": 3}, {"x-request-id": "r1"}
    asking = asyncio.create_task(frontend.http.post("/v1/completions", json=body, headers=headers))
    await engine.until(lambda: engine.running)

    await vllm_engine.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1"]))

    await engine.allow(None)
    [choice] = (await asking).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT[:3], "length")
    assert not engine.aborted


async def test_abort_ends_its_own_of_two_requests_with_one_id(vllm_engine, channel, engine):
    engine.pause()
    params = types_pb2.SamplingParams(max_tokens=3)
    other = inference_pb2.GenerateRequest(text="hi", request_id="r1", sampling_params=params)
    asking = asyncio.create_task(answers_of(inference_pb2_grpc.InferenceServiceStub(channel).Generate(other)))
    await engine.until(lambda: len(engine.running) == 1)
    call = vllm_engine.Generate(request(request_id="r1"))
    await engine.until(lambda: len(engine.running) == 2)

    await vllm_engine.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1"]))

    *_, last = await answers_of(call)
    await engine.allow(None)
    assert last.complete.finish_reason == "abort"
    assert (await asking)[-1].finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_abort_of_a_request_whose_prompt_is_still_made_into_tokens(vllm_engine, tokenizer, engine):
    engine.pause()
    tokenizer.hung.clear()
    message = request(request_id="r1")
    message.text = "hi"
    call = vllm_engine.Generate(message)
    async with asyncio.timeout(10):
        while not tokenizer.num_calls:
            await vllm_engine.HealthCheck(vllm_engine_pb2.HealthCheckRequest())

    await vllm_engine.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r1"]))
    tokenizer.hung.set()

    async with asyncio.timeout(10):
        *_, last = await answers_of(call)
    assert (last.complete.finish_reason, last.complete.completion_tokens) == ("abort", 0)
    assert not engine.running


async def test_a_cancelled_call_frees_its_request(vllm_engine, engine):
    engine.pause()
    call = vllm_engine.Generate(request(params={"max_tokens": 400}))
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
        (request(kv_transfer_params_json="{"), "kv_transfer_params_json"),
        (vllm_engine_pb2.GenerateRequest(), "input"),
    ],
)
async def test_a_wrong_request_is_an_invalid_argument_that_names_its_field(vllm_engine, message, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers_of(vllm_engine.Generate(message))

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


async def test_a_deadline_of_the_call_is_one_of_the_request(vllm_engine, engine):
    engine.pause()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers_of(vllm_engine.Generate(request(), timeout=0.3))

    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await engine.until(lambda: engine.aborted)


async def test_embeddings_are_not_served(vllm_engine):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await vllm_engine.Embed(vllm_engine_pb2.EmbedRequest())

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
