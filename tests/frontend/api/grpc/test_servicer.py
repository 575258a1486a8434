"""The public gRPC API: deltas, usage, statuses, aborts."""

import asyncio

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct, Value

from tests.frontend.fakes import TEXT
from tetrad.services.errors import PromptTooLong
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2


@pytest.fixture
async def channel(frontend):
    async with open_channel(frontend.grpc_address) as opened:
        yield opened


@pytest.fixture
def stub(channel):
    return inference_pb2_grpc.InferenceServiceStub(channel)


def generate(**fields):
    params = types_pb2.SamplingParams(max_tokens=9, temperature=0.7)
    return inference_pb2.GenerateRequest(**({"text": "hi", "sampling_params": params} | fields))


async def test_generate_streams_deltas_and_ends_with_usage(stub, engine):
    responses = [response async for response in stub.Generate(generate(request_id="mine"))]

    assert "".join(response.text for response in responses) == TEXT[:9]
    assert responses[-1].finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert (responses[-1].usage.prompt_tokens, responses[-1].usage.completion_tokens) == (2, 9)
    assert responses[0].request_id == "mine"
    assert engine.requests[0].sampling_params.temperature == pytest.approx(0.7)


async def test_generate_from_ids_with_stop_and_logprobs(stub):
    request = generate(
        text=None,
        token_ids=inference_pb2.TokenIdList(ids=[1, 2]),
        text_options=inference_pb2.TextOptions(stop=["quick"]),
        sampling_params=types_pb2.SamplingParams(max_tokens=20, logprobs=1),
    )

    responses = [response async for response in stub.Generate(request)]

    assert "".join(response.text for response in responses) == "The "
    assert responses[-1].stop_reason.text == "quick"
    pieces = [entry for response in responses for entry in response.logprobs]
    assert len(pieces) == sum(len(response.token_ids) for response in responses) == 9
    assert pieces[0].sampled.logprob == -0.5


async def test_generate_keeps_the_end_of_the_prompt_that_is_asked_for(stub, engine):
    request = generate(text="abcdef", truncate_prompt_tokens=2, truncation_side="right")

    assert [response async for response in stub.Generate(request)]
    assert unpack_u32(engine.requests[0].prompt_token_ids) == list(b"ab")


async def test_a_request_is_called_what_its_metadata_say(stub, engine):
    call = stub.Generate(generate(), metadata=(("x-request-id", "theirs"),))

    assert {response.request_id async for response in call} == {"theirs"}
    assert dict(await call.initial_metadata())["x-request-id"] == "theirs"
    assert engine.requests[0].external_req_id == "theirs"


async def test_chat(stub):
    request = inference_pb2.ChatRequest(
        messages=[inference_pb2.ChatMessage(role="user", content="hi")],
        sampling_params=types_pb2.SamplingParams(max_tokens=5),
        n=2,
    )

    texts = {0: "", 1: ""}
    async for response in stub.Chat(request):
        texts[response.index] += response.content

    assert texts == {0: TEXT[:5], 1: TEXT[:5]}


@pytest.mark.parametrize("text", ["x" * 600, "x" * 90_000])
async def test_a_prompt_over_the_context_has_the_reason_and_the_words_that_clients_look_for(stub, text):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [response async for response in stub.Generate(generate(text=text))]

    error = from_rpc_error(caught.value)
    assert (error.reason, type(error)) == ("CONTEXT_LENGTH_EXCEEDED", PromptTooLong)
    assert error.message.startswith("This model's maximum context length is 512 tokens. However, you requested ")


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ({"model": "x"}, grpc.StatusCode.NOT_FOUND, "model"),
        ({"sampling_params": types_pb2.SamplingParams(temperature=3)}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"sampling_params": types_pb2.SamplingParams(max_tokens=0)}, grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
        (
            {"sampling_params": types_pb2.SamplingParams(extra_args=Struct(fields={"a": Value(number_value=1)}))},
            grpc.StatusCode.INVALID_ARGUMENT,
            "extra_args",
        ),
        ({"request_id": "a\nb"}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"kv_transfer_params_json": "{"}, grpc.StatusCode.INVALID_ARGUMENT, "kv_transfer_params_json"),
        ({"media": [inference_pb2.MediaPart(data=b"x")]}, grpc.StatusCode.INVALID_ARGUMENT, "media[0]"),
        (
            {"sampling_params": types_pb2.SamplingParams(thinking_end_token_ids=[1])},
            grpc.StatusCode.INVALID_ARGUMENT,
            "thinking_end_token_ids",
        ),
        ({"truncation_side": "up"}, grpc.StatusCode.INVALID_ARGUMENT, "truncation_side"),
        ({"text_options": inference_pb2.TextOptions(bad_words=[""])}, grpc.StatusCode.INVALID_ARGUMENT, "bad_words"),
    ],
)
async def test_errors_have_status_and_field(stub, fields, code, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [response async for response in stub.Generate(generate(**fields))]

    assert caught.value.code() == code
    assert from_rpc_error(caught.value).field == field


async def test_embed_is_unimplemented(stub):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Embed(inference_pb2.EmbedRequest(texts=["a"]))

    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_cancelled_call_aborts_at_the_engine(stub, engine):
    engine.pause()
    call = stub.Generate(generate(sampling_params=types_pb2.SamplingParams(max_tokens=400)))
    await call.initial_metadata()
    await engine.until(lambda: engine.running)
    await engine.allow(2)
    await call.read()

    call.cancel()

    await engine.until(lambda: engine.aborted)


async def test_models(channel):
    stub = inference_pb2_grpc.ModelServiceStub(channel)

    listed = await stub.ListModels(inference_pb2.ListModelsRequest(page_size=1))
    card = (await stub.GetModel(inference_pb2.GetModelRequest(name="fake"))).model

    assert ([model.name for model in listed.models], listed.next_page_token) == (["fake"], "")
    assert (card.max_model_len, card.vocab_size) == (512, 258)


@pytest.mark.parametrize("token", ["next", "-1", "9" * 5000])
async def test_unknown_page_tokens_are_refused(channel, token):
    stub = inference_pb2_grpc.ModelServiceStub(channel)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListModels(inference_pb2.ListModelsRequest(page_token=token))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_call_beyond_the_limit_of_requests_is_refused_with_retry_info(serve_frontend, engine):
    engine.pause()
    async with (
        serve_frontend(listen="127.0.0.1:0", max_num_requests=1) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        waiting = stub.Generate(generate())
        await engine.until(lambda: len(engine.requests) == 1)

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(generate()).read()
        await engine.allow(None)
        served = [response async for response in waiting]

    error = from_rpc_error(refused.value)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.retry_after_s is not None
    assert 1 <= error.retry_after_s <= 60
    assert served


async def test_a_servers_limit_ends_a_call_that_has_none_of_its_own(serve_frontend, engine):
    engine.pause()
    async with (
        serve_frontend(listen="127.0.0.1:0", request_timeout_s=0.2) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=r"time limit of 0\.2 s") as late:
            await inference_pb2_grpc.InferenceServiceStub(channel).Generate(generate()).read()
        await engine.until(lambda: len(engine.aborted) == 1)

    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_the_engine_is_told_the_deadline_of_a_call(stub, engine):
    assert [response async for response in stub.Generate(generate(), timeout=5)]

    # gRPC rounds a deadline up when it writes the grpc-timeout header.
    assert 4 < engine.requests[0].timeout_nanos / 1e9 < 5.1


async def test_a_call_that_is_late_or_cancelled_leaves_the_engine(stub, engine):
    engine.pause()
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await stub.Generate(generate(), timeout=0.2).read()
    await engine.until(lambda: len(engine.aborted) == 1)
    call = stub.Generate(generate())
    await engine.until(lambda: len(engine.requests) == 2)

    call.cancel()

    await engine.until(lambda: len(engine.aborted) == 2)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_client_that_takes_nothing_is_dropped(serve_frontend, engine, caplog):
    engine.step_delay_s = 0.005  # else it has made everything before anybody notices
    async with (
        serve_frontend(listen="127.0.0.1:0", slow_client_timeout_s=0.3) as frontend,
        # A window that does not grow with the connection's speed.
        grpc.aio.insecure_channel(frontend.grpc_address, options=[("grpc.http2.bdp_probe", 0)]) as channel,
    ):
        # Each message is long: it has the log-probabilities of many tokens.
        params = types_pb2.SamplingParams(max_tokens=400, ignore_eos=True, logprobs=5)
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(generate(sampling_params=params, n=40))
        await call.read()

        await engine.until(lambda: len(engine.aborted) > 0)

        call.cancel()
    # That it leaves without its status is no fault. Others may log meanwhile, from threads of their own.
    assert [record for record in caplog.records if record.name.startswith("grpc")] == []


async def test_a_client_that_reads_again_too_late_finds_what_was_sent_and_then_the_reason(serve_frontend, engine):
    engine.step_delay_s = 0.005
    async with (
        serve_frontend(listen="127.0.0.1:0", slow_client_timeout_s=0.3, max_concurrent_streams=1) as frontend,
        grpc.aio.insecure_channel(frontend.grpc_address, options=[("grpc.http2.bdp_probe", 0)]) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        params = types_pb2.SamplingParams(max_tokens=400, ignore_eos=True, logprobs=5)
        call = stub.Generate(generate(sampling_params=params, n=40))
        await engine.until(lambda: len(engine.aborted) > 0)

        async with asyncio.timeout(10):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                _ = [message async for message in call]
            # The only stream that the connection may have is free again.
            after = [message async for message in stub.Generate(generate())]

    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "0.3 s" in caught.value.details()
    assert after


@pytest.mark.parametrize("public", [True, False])
async def test_a_private_address_has_the_api_beside_the_public_one_or_alone(serve_frontend, sockets, public):
    private = f"unix:{sockets}/private"
    async with (
        serve_frontend(listen="127.0.0.1:0" if public else "", private_listen=private),
        open_channel(private) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        responses = [response async for response in stub.Generate(generate())]

        assert "".join(response.text for response in responses) == TEXT[:9]
