"""PrepareSpeech over gRPC, of the service as it is started."""

import asyncio

import grpc
import pytest
import pytest_asyncio

from tests.sounds import sound
from tests.whisper_files import LANGUAGES
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.service import serve
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc, types_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMEOUT_S = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub_of(tmp_path_factory):
    """`await stub_of(model)` gives a stub of the service of that model, which all tests share."""
    stubs, directory = {}, tmp_path_factory.mktemp("sockets")
    shutdown, running, channels = asyncio.Event(), [], []

    async def open_stub(model):
        if model not in stubs:
            stubs[model] = await start(model)
        return stubs[model]

    async def start(model):
        settings = TokenizerSettings(listen=f"unix:{directory}/{len(stubs)}", model=str(model))
        running.append(asyncio.create_task(serve(settings, shutdown)))
        channels.append(open_channel(settings.listen))
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channels[-1])
        await stub.GetInfo(tokenizer_pb2.GetInfoRequest(), wait_for_ready=True, timeout=TIMEOUT_S)
        return stub

    yield open_stub
    shutdown.set()
    for channel in channels:
        await channel.close()
    await asyncio.gather(*running)


async def test_a_recording_comes_in_messages(stub_of, whisper):
    stub = await stub_of(whisper)
    request = tokenizer_pb2.PrepareSpeechRequest(data=sound(40.0), with_timestamps=True)

    first, *others = [response async for response in stub.PrepareSpeech(request)]

    facts, pieces = first.facts, [response.piece for response in others]
    assert (facts.duration_s, facts.num_pieces, facts.language) == (40.0, 2, "")
    assert list(facts.detection.languages) == list(LANGUAGES)
    assert len(unpack_u32(facts.detection.language_token_ids)) == len(LANGUAGES)
    assert (facts.HasField("first_timestamp_id"), facts.timestamp_step_s) == (True, 0.02)
    assert facts.rules.first_timestamp_id == facts.first_timestamp_id
    assert facts.rules.max_initial_timestamp == 50
    assert facts.no_speech.position == 0
    assert [(piece.language_index, len(unpack_u32(piece.token_ids))) for piece in pieces] == [(1, 2), (1, 2)]
    [feature] = pieces[1].mm_features
    assert (feature.modality, feature.offset, feature.length, feature.num_embeds) == ("audio", 0, 0, 1500)
    tensor = feature.tensors["input_features"]
    assert (tensor.dtype, list(tensor.shape)) == (types_pb2.DATA_TYPE_FLOAT32, [80, 3000])
    assert sum(piece.duration_s for piece in pieces) == pytest.approx(40.0)


async def test_the_service_says_what_it_makes_of_recordings(stub_of, whisper):
    info = await (await stub_of(whisper)).GetInfo(tokenizer_pb2.GetInfoRequest())

    assert list(info.speech_tasks) == [types_pb2.SPEECH_TASK_TRANSCRIBE, types_pb2.SPEECH_TASK_TRANSLATE]


async def test_errors_name_their_field(stub_of, whisper):
    stub = await stub_of(whisper)

    for request, field in (
        (tokenizer_pb2.PrepareSpeechRequest(data=b"x"), "data"),
        (tokenizer_pb2.PrepareSpeechRequest(data=b"x", language="xx"), "language"),
        (tokenizer_pb2.PrepareSpeechRequest(data=b"x", task=9), "task"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [_ async for _ in stub.PrepareSpeech(request)]
        assert from_rpc_error(caught.value).field == field


async def test_a_model_of_text_reads_no_speech(stub_of, smollm2):
    stub = await stub_of(smollm2)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [_ async for _ in stub.PrepareSpeech(tokenizer_pb2.PrepareSpeechRequest(data=b"x"))]

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not (await stub.GetInfo(tokenizer_pb2.GetInfoRequest())).speech_tasks
