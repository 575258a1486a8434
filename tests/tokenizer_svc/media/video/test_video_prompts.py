"""Videos in prompts: token ids are those of transformers' processors, for files, frames and other settings of reading."""

import json
from typing import Any

import grpc
import numpy as np
import pytest

from tests.pictures import picture
from tests.tokenizer_svc.media.conftest import ModelDirectory, ServeModel, StubOf
from tests.video_files import frame_file, moving, video
from tetrad.v1 import tokenizer_pb2, types_pb2

DTYPES = {types_pb2.DATA_TYPE_UINT8: np.uint8, types_pb2.DATA_TYPE_INT64: np.int64}


def chat(*parts: str | tuple[str, bytes], **fields: Any) -> tokenizer_pb2.RenderChatRequest:
    """Return a conversation of one message with texts and (modality, file) in their order."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": part[0]} for part in parts]
    media = [tokenizer_pb2.MediaItem(modality=part[0], data=part[1]) for part in parts if not isinstance(part, str)]
    messages = json.dumps([{"role": "user", "content": content}]).encode()
    return tokenizer_pb2.RenderChatRequest(messages_json=messages, media=media, **fields)


def io(**settings: object) -> bytes:
    return json.dumps({"video": settings}).encode()


def arrays(feature: types_pb2.MultiModalFeature) -> dict[str, Any]:
    return {
        name: np.frombuffer(tensor.inline, DTYPES[tensor.dtype]).reshape(tensor.shape)
        for name, tensor in feature.tensors.items()
    }


async def test_seconds_between_frames_are_positions_in_time(stub_of: StubOf) -> None:
    stub = await stub_of("qwen2_5_vl")
    answer = await stub.RenderChat(chat(("video", video(40)), media_io_kwargs_json=io(num_frames=8)))

    # Eight frames of four seconds, of which two are one time; transformers' default is four positions a second.
    assert answer.mm_features[0].time_step == np.float32(4) * np.float32(2 / (8 / 40 * 10.0))
    assert list(answer.mm_features[0].grid) == [4, 2, 3]


async def test_frames_are_read_as_they_are_sent(stub_of: StubOf) -> None:
    stub, frames = await stub_of("smolvlm"), moving(3, 28, 28)
    request = chat(("video", frame_file(frames, fps=2.0, frames_indices=[0, 10, 130], total_num_frames=200)))

    answer = await stub.RenderChat(request)

    pixels = arrays(answer.mm_features[0])["pixel_values_videos"]
    assert pixels.shape == (3, 3, 28, 28)
    sequence = types_pb2.TokenIds(ids=answer.token_ids)
    [text] = (await stub.Decode(tokenizer_pb2.DecodeRequest(sequences=[sequence]))).texts
    assert "of three frames from a 0:01:40 [H:MM:SS] video" in text
    assert [f"Frame from {time}:" in text for time in ("00:00", "00:05", "01:05")] == [True] * 3


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 8), ({"num_frames": 3}, 3), ({"fps": 1}, 4), ({"num_frames": -1, "fps": 4}, 16), ({"num_frames": -1, "fps": -1}, 40)],
)
async def test_a_request_chooses_how_many_frames_are_read(settings: dict[str, int], count: int, stub_of: StubOf) -> None:
    stub = await stub_of("qwen2_vl")

    answer = await stub.RenderChat(chat(("video", video(40)), media_io_kwargs_json=io(**settings) if settings else b""))

    assert answer.mm_features[0].grid[0] == (count + 1) // 2


async def test_videos_and_images_of_a_prompt_keep_their_order(stub_of: StubOf) -> None:
    for kind in ("smolvlm", "qwen2_vl", "glm4v"):
        stub = await stub_of(kind)
        parts = (("video", video(6)), "then", ("image", picture(60, 40)), ("video", video(4, seed=1)))

        answer = await stub.RenderChat(chat(*parts))

        assert [each.modality for each in answer.mm_features] == ["video", "image", "video"]
        ends = [each.offset + each.length for each in answer.mm_features]
        assert all(end <= each.offset for end, each in zip(ends, answer.mm_features[1:], strict=False))
        assert len({each.identifier for each in answer.mm_features}) == 3


async def test_equal_videos_of_equal_settings_have_one_identifier(stub_of: StubOf) -> None:
    stub, file = await stub_of("qwen3_vl"), video(20)
    one, same = [await stub.RenderChat(chat(("video", file))) for _ in range(2)]
    other = await stub.RenderChat(chat(("video", file), media_io_kwargs_json=io(num_frames=2)))

    assert one.mm_features[0] == same.mm_features[0]
    assert one.mm_features[0].identifier != other.mm_features[0].identifier


async def test_the_operator_chooses_how_many_frames_are_read(serve_model: ServeModel, model_directory: ModelDirectory) -> None:
    settings = {"media_io_kwargs": '{"video": {"num_frames": 2}}', "max_video_frames": 6, "max_videos_per_prompt": 1}
    async with serve_model(model_directory("qwen2_vl"), **settings) as stub:
        two = await stub.RenderChat(chat(("video", video(40))))
        most = await stub.RenderChat(chat(("video", video(40)), media_io_kwargs_json=io(num_frames=-1, fps=-1)))
        info = await stub.GetInfo(tokenizer_pb2.GetInfoRequest())
        with pytest.raises(grpc.RpcError, match=r"At most 1 video\(s\) may be provided in one prompt"):
            await stub.RenderChat(chat(("video", video(2)), ("video", video(2))))

    assert (two.mm_features[0].grid[0], most.mm_features[0].grid[0]) == (1, 3)
    limits = [(each.modality, each.max_items, each.max_embeds_per_item) for each in info.modalities]
    assert ("video", 1, 24_576) in limits


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[]", "is not a JSON object"),
        (b'{"image": {}}', "has settings of 'image', of which the prompt has none"),
        (b'{"video": {"backend": "opencv"}}', "has 'backend' for video; it takes num_frames, fps, frames_indices"),
        (b'{"video": {"num_frames": 0}}', "num_frames 0; it is a number of at least 1, or -1 for all"),
        (b'{"video": {"num_frames": "8"}}', "num_frames '8'"),
        (b'{"video": {"fps": 1e9}}', "fps 1000000000.0"),
        (b'{"video": {"duration": 3}}', "'duration', which only videos that are sent as frames have"),
    ],
)
async def test_other_settings_of_reading_are_refused(value: bytes, reason: str, stub_of: StubOf) -> None:
    stub = await stub_of("qwen2_vl")

    with pytest.raises(grpc.RpcError) as refused:
        await stub.RenderChat(chat(("video", video(4)), media_io_kwargs_json=value))

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert reason in str(refused.value.details())


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"fps": 0}, "0 frames a second"),
        ({"fps": "fast"}, "fps 'fast', which is no number"),
        ({"frames_indices": [0, 1]}, "3 ascending numbers are needed"),
        ({"frames_indices": [2, 1, 3]}, "3 ascending numbers are needed"),
        ({"frames_indices": [0, 1, 5], "total_num_frames": 5}, "the last of its frames has index 5"),
        ({"frames_indices": [0, 1, 1 << 40]}, "s long; the limit is 86400"),
        ({"num_frames": 2}, "which only video files have"),
    ],
)
async def test_what_contradicts_the_frames_is_refused(about: dict[str, Any], reason: str, stub_of: StubOf) -> None:
    stub = await stub_of("qwen3_vl")

    with pytest.raises(grpc.RpcError) as refused:
        await stub.RenderChat(chat(("video", frame_file(moving(3))), media_io_kwargs_json=io(**about)))

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert reason in str(refused.value.details())


async def test_a_model_without_videos_refuses_them(stub_of: StubOf) -> None:
    stub = await stub_of("llava")

    with pytest.raises(grpc.RpcError, match="takes image input only"):
        await stub.RenderChat(chat(("video", video(4))))


async def test_a_template_that_names_no_videos_gets_their_placeholders(stub_of: StubOf) -> None:
    stub, template = await stub_of("smolvlm"), "{% for part in messages[0].content %}{{ part.text or '<image>' }} {% endfor %}"

    answer = await stub.RenderChat(
        chat("What", ("video", video(3)), ("image", picture(60, 40)), chat_template=template, add_generation_prompt=False)
    )

    assert answer.prompt == "What <video> <image> "
    assert [each.modality for each in answer.mm_features] == ["video", "image"]
