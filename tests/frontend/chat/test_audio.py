"""Audio in chat completions and in prompts over gRPC, from the content part to the file that the tokenizer receives."""

import base64

import pytest

from tests.frontend.chat.asking import ask
from tests.frontend.chat.test_images import refused, text, user
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import inference_pb2 as pb
from tetrad.v1 import inference_pb2_grpc, types_pb2

AUDIO = (types_pb2.ModalityInfo(modality="audio", max_items=3, max_embeds_per_item=64),)
DATA = base64.b64encode(b"song").decode()
LINK = {"type": "audio_url", "audio_url": {"url": f"data:audio/mp3;base64,{DATA}"}}
INPUT = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}


@pytest.fixture
def tokenizer(tokenizer):
    tokenizer.modalities = AUDIO
    return tokenizer


@pytest.fixture
def make_engine(make_engine):
    def make(*args, **options):
        engine = make_engine(*args, **options)
        engine.modalities = AUDIO
        return engine

    return make


@pytest.mark.parametrize(
    ("part", "media_type"),
    [
        (LINK, "audio/mp3"),
        (INPUT, "audio/wav"),
        ({"type": "input_audio", "input_audio": {"data": DATA}}, ""),
        ({"audio_url": LINK["audio_url"]}, "audio/mp3"),
        ({"input_audio": INPUT["input_audio"]}, "audio/wav"),
    ],
    ids=["url", "input", "without a format", "url without a type", "input without a type"],
)
async def test_audio_reaches_the_tokenizer_as_its_file_and_the_template_as_a_mark(
    frontend, tokenizer, engine, part, media_type
):
    await ask(frontend, messages=[user(text("listen: "), part)])

    [request] = tokenizer.rendered
    [item] = request.media
    assert b'[{"type": "text", "text": "listen: "}, {"type": "audio"}]' in request.messages_json
    assert (item.modality, item.data, item.uuid, item.media_type) == ("audio", b"song", "", media_type)
    assert engine.requests[0].mm_features[0].modality == "audio"


@pytest.mark.parametrize("part", [LINK, INPUT], ids=["url", "input"])
async def test_a_uuid_stands_for_audio_that_was_sent_before(frontend, tokenizer, part):
    await ask(frontend, messages=[user(part | {"uuid": "tune"})])
    await ask(frontend, messages=[user({"type": part["type"], part["type"]: None, "uuid": "tune"})])

    assert [(each.media[0].uuid, each.media[0].data) for each in tokenizer.rendered] == [("tune", b"song"), ("tune", b"")]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "input_audio"}, "messages[0].content[0].input_audio must be {data, format}, got NoneType."),
        ({"type": "input_audio", "input_audio": {}}, "messages[0].content[0].input_audio.data must be the file in base64."),
        (
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "a/b"}},
            "messages[0].content[0].input_audio.format must be the name of a format such as 'wav' or 'mp3', got 'a/b'.",
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "?"}},
            "messages[0].content[0]: Failed to load audio: it is not base64",
        ),
        ({"type": "audio_url", "audio_url": 3}, "messages[0].content[0].audio_url must be a URL or {url}, got int."),
        ({"type": "audio_url", "audio_url": "http://a.example/b"}, "must be from one of the allowed domains"),
        ({"type": "audio"}, "Unsupported chat content part type: 'audio'; send an audio as a part of type audio_url."),
        ({"type": "image_url", "image_url": "data:image/png;base64,YQ=="}, "At most 0 image(s) may be provided in one prompt."),
    ],
)
async def test_wrong_parts_are_refused(http, part, message):
    assert message in (await refused(http, messages=[user(part)]))["message"]


async def test_audio_beyond_the_limits_is_refused(serve_frontend):
    options = {"limit_mm_per_prompt": '{"audio": 1}', "max_audio_bytes": 1024}
    async with serve_frontend(**options) as frontend:
        http = frontend.http
        many = await refused(http, messages=[user(LINK, LINK)])
        data = base64.b64encode(bytes(2000)).decode()
        large = await refused(http, messages=[user({"type": "input_audio", "input_audio": {"data": data}})])

    assert many["message"].startswith("At most 1 audio(s) may be provided in one prompt. Set `--limit-mm-per-prompt`")
    assert "the audio has at least 1999 bytes; the limit is 1024 (max_audio_bytes)." in large["message"]


async def test_audio_over_grpc(frontend, tokenizer, engine):
    parts = [pb.ContentPart(text="what?"), pb.ContentPart(audio=pb.MediaPart(data=b"song", media_type="audio/flac"))]
    sampling = types_pb2.SamplingParams(max_tokens=2)
    message = pb.ChatMessage(role="user", content_parts=parts)
    async with open_channel(frontend.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert [each async for each in stub.Chat(pb.ChatRequest(messages=[message], sampling_params=sampling))]
        media = [pb.MediaPart(url=LINK["audio_url"]["url"], media_type="audio/mp3")]
        request = pb.GenerateRequest(text="a<image>b", media=media, sampling_params=sampling)
        assert [each async for each in stub.Generate(request)]

    assert tokenizer.rendered[0].media[0].media_type == "audio/flac"
    assert [each.mm_features[0].modality for each in engine.requests] == ["audio", "audio"]
