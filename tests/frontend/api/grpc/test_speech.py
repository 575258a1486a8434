"""Transcribe over gRPC: options first, then the file in parts; text and segments come back."""

import grpc
import pytest

from tests.frontend.fakes.speech import AUDIO, TASKS, says
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import inference_pb2 as pb
from tetrad.v1 import inference_pb2_grpc, types_pb2

TIMED = {"first": [*b" one", 204, 204, *b" two", 210], "second": [*b" three"]}


@pytest.fixture
async def stub(tokenizer, engine, serve_frontend):
    tokenizer.modalities = engine.modalities = AUDIO
    tokenizer.speech.tasks, engine.transcribes = TASKS, True
    async with (
        serve_frontend(listen="127.0.0.1:0", max_speech_bytes=1024) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        yield inference_pb2_grpc.InferenceServiceStub(channel)


def messages(*parts, **options):
    return [pb.TranscribeRequest(options=pb.TranscribeOptions(**options)), *(pb.TranscribeRequest(data=p) for p in parts)]


async def ask(stub, *parts, **options):
    return [answer async for answer in stub.Transcribe(iter(messages(*parts, **options)))]


async def refusal(stub, requests):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [_ async for _ in stub.Transcribe(iter(requests))]
    return caught.value.code(), from_rpc_error(caught.value).message


async def test_text_comes_in_deltas(stub, engine):
    engine.reply = says({"first": " Mary had", "second": " a lamb."})

    first, *others, last = await ask(stub, b"fir", b"st|sec", b"ond")

    assert (first.summary.duration_s, first.summary.language) == (60.0, "de")
    assert "".join(each.text for each in others) == "Mary had a lamb."
    assert last.finish_reason == types_pb2.FINISH_REASON_STOP
    assert last.usage.prompt_tokens == len("<_transcribe>first<_transcribe>second")
    assert last.usage.completion_tokens == len(" Mary had") + len(" a lamb.") + 2


async def test_segments_have_their_times(stub, engine):
    engine.reply = says(TIMED)

    _, *others, _ = await ask(stub, b"first|second", language="de", with_segments=True)

    found = [(each.start_s, each.end_s, each.text) for answer in others for each in answer.segments]
    assert found == [(0.0, 2.0, " one"), (2.0, 5.0, " two"), (30.0, 60.0, " three")]
    assert [answer.text for answer in others] == ["one two", " three"]


async def test_the_task_and_the_sampling_parameters_are_taken(stub, engine, tokenizer):
    engine.reply = says({"first": "Mary"})
    params = types_pb2.SamplingParams(temperature=0.5, seed=7)

    await ask(stub, b"first", language="de", task=types_pb2.SPEECH_TASK_TRANSLATE, sampling_params=params)

    assert tokenizer.speech.requests[0].task == types_pb2.SPEECH_TASK_TRANSLATE
    sent = engine.requests[0].sampling_params
    assert (sent.temperature, sent.seed) == (0.5, 7)


async def test_the_temperature_is_zero_by_default(stub, engine):
    engine.reply = says({"first": "Mary"})

    await ask(stub, b"first", language="de")

    assert engine.requests[0].sampling_params.temperature == 0


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "The first message must have options."),
        ([pb.TranscribeRequest(data=b"x")], "The first message must have options."),
        ([*messages(b"x"), *messages(b"y")], "Only the first message may have options."),
        (messages(), "The audio file is empty."),
        (messages(b"x" * 1000, b"x" * 1000), "Maximum file size exceeded: the audio file has at least 2000 bytes"),
        (messages(b"broken"), "Invalid or unsupported audio file."),
        (messages(b"x", task=9), "There is no task 9."),
        (messages(b"x", language="xx"), "Unsupported language: 'xx'."),
        (messages(b"x", sampling_params=types_pb2.SamplingParams(logprobs=1)), "logprobs is not supported for"),
    ],
    ids=["nothing", "no options", "options twice", "empty", "large", "broken", "task", "language", "logprobs"],
)
async def test_a_wrong_call_says_why(stub, requests, message):
    code, found = await refusal(stub, requests)

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert found.startswith(message)


async def test_a_model_without_speech_says_so(frontend):
    async with open_channel(frontend.grpc_address) as channel:
        found = await refusal(inference_pb2_grpc.InferenceServiceStub(channel), messages(b"x"))

    assert found == (grpc.StatusCode.UNIMPLEMENTED, "The model does not support Transcriptions API")
