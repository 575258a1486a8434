"""Videos over gRPC: files, URLs and frames, in conversations and in prompts, and how they are read."""

import base64

import pytest

from tests.frontend.api.grpc.test_images import chat, refusal
from tetrad.services.models.video_frames import split_frames
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import inference_pb2 as pb
from tetrad.v1 import inference_pb2_grpc, types_pb2

VIDEOS = tuple(types_pb2.ModalityInfo(modality=name, max_items=8, max_embeds_per_item=64) for name in ("image", "video"))
FRAMES = "data:video/jpeg;base64," + ",".join(base64.b64encode(frame).decode() for frame in (b"one", b"two"))


@pytest.fixture
async def stub(tokenizer, engine, serve_frontend):
    tokenizer.modalities = engine.modalities = VIDEOS
    async with serve_frontend(listen="127.0.0.1:0") as running, open_channel(running.grpc_address) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


async def test_a_part_of_a_conversation_is_a_video(stub, tokenizer, engine):
    request = chat(
        pb.ContentPart(video=pb.MediaPart(data=b"film", media_type="video/mp4")),
        pb.ContentPart(image=pb.MediaPart(data=b"cats")),
        media_io_kwargs_json='{"video": {"fps": 1}}',
    )

    answers = [answer async for answer in stub.Chat(request)]

    [rendered] = tokenizer.rendered
    assert [(item.modality, item.data) for item in rendered.media] == [("video", b"film"), ("image", b"cats")]
    assert b'[{"type": "video"}, {"type": "image"}]' in rendered.messages_json
    assert rendered.media_io_kwargs_json == b'{"video": {"fps": 1}}'
    assert [each.modality for each in engine.requests[0].mm_features] == ["video", "image"]
    assert answers


async def test_frames_of_a_url_become_one_file(stub, tokenizer):
    [_ async for _ in stub.Chat(chat(pb.ContentPart(video=pb.MediaPart(url=FRAMES, uuid="film"))))]

    [item] = tokenizer.rendered[0].media
    assert split_frames(item.data, 2) == ({}, [b"one", b"two"])
    assert (item.uuid, item.media_type) == ("film", "video/jpeg")


async def test_a_prompt_has_videos(stub, engine):
    media = [pb.MediaPart(data=b"film", media_type="video/mp4")]
    request = pb.GenerateRequest(text="a<image>b", media=media, sampling_params=types_pb2.SamplingParams(max_tokens=2))

    answers = [answer async for answer in stub.Generate(request)]

    assert [each.modality for each in engine.requests[0].mm_features] == ["video"]
    assert answers


async def test_a_url_of_another_scheme_is_refused(stub):
    request = chat(pb.ContentPart(video=pb.MediaPart(url="ftp://host/film.mp4")))

    assert "must be either a HTTP, data or file URL" in await refusal(stub.Chat(request))
