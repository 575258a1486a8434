"""Hostile video files: each is refused with its reason, within the limits of time and memory, and harms no other request."""

import random
import struct
import time
from collections.abc import Callable

import grpc
import psutil
import pytest

from tests.pictures import picture
from tests.tokenizer_svc.media.conftest import ModelDirectory, ServeModel, StubOf
from tests.tokenizer_svc.media.video.test_video_prompts import chat
from tests.video_files import frame_file, moving, video
from tetrad.services.models.video_frames import SIGN, join_frames
from tetrad.tokenizer_svc.media.items import MediaError
from tetrad.tokenizer_svc.media.video.frames_processor import FramesProcessor

MODULE = "tetrad.tokenizer_svc.media.video.video_process"
SETTINGS = {"do_resize": True, "resample": 3, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"


@pytest.fixture
def processor() -> FramesProcessor:
    return FramesProcessor(
        settings=SETTINGS | {"size": {"shortest_edge": 784, "longest_edge": 16 * 784}},
        rule="frames in grid",
        in_grid=True,
        sampling={"num_frames": 8, "fps": -1, "least_frames": 4},
        max_pixels=1 << 20,
        max_frames=16,
    )


def lying_duration(file: bytes) -> bytes:
    """Return the file with another time scale of its track: it claims billions of frames a second."""
    place = file.index(b"mdhd") + 4 + 12
    return file[:place] + struct.pack(">I", 0xFFFFFFFF) + file[place + 4 :]


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"\x00", "no video of these formats"),
    "text": (lambda: b"hello" * 1000, "no video of these formats"),
    "an image": (lambda: picture(40, 40), "no video of these formats"),
    "a playlist of local files": (lambda: PLAYLIST, "no video of these formats"),
    "a list of files": (lambda: b"ffconcat version 1.0\nfile /etc/passwd\n", "no video of these formats"),
    "its beginning": (lambda: video(20)[:600], "damaged"),
    "large frames": (lambda: video(2, size=(2048, 1024)), "2048 x 1024 pixels, 2097152 in all; the limit is 1048576"),
    "a billion frames a second": (lambda: lying_duration(video(20)), "frames a second; the limits are"),
    "long and thin": (lambda: frame_file(moving(2, 2000, 4)), "absolute aspect ratio must be smaller than 200"),
    "frames of nothing": (lambda: SIGN, "it has no frames"),
    "a cut list of frames": (lambda: frame_file(moving(2))[:-5], "is cut"),
    "a frame of 16 exabytes": (lambda: SIGN + struct.pack("<Q", 1 << 63), "is cut"),
    "too many frames": (lambda: join_frames([picture(28, 28)] * 17, {}), r"more than 16 frames (max_video_frames)"),
    "frames of two sizes": (lambda: join_frames([picture(28, 28), picture(30, 28)], {}), "frame 1 has (30, 28) pixels"),
    "a frame that is no image": (lambda: join_frames([picture(28, 28), b"x"], {}), "frame 1: the data is no image"),
    "a header that is no object": (lambda: SIGN + struct.pack("<Q", 2) + b"[]" + struct.pack("<Q", 1) + b"x", "no object"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_videos_are_refused(name: str, processor: FramesProcessor) -> None:
    make, reason = FILES[name]

    with pytest.raises(MediaError) as refused:
        processor.process(make(), {})

    assert reason in str(refused.value)


def test_damaged_files_give_their_frames_or_an_error(processor: FramesProcessor) -> None:
    chance = random.Random(5)
    whole = video(20)
    started, outcomes = time.monotonic(), set()
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 4, 64))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file = bytes(damaged[: chance.randrange(len(damaged))]) if chance.random() < 0.3 else bytes(damaged)
        try:
            tensors = processor.process(file, {})
        except MediaError:
            outcomes.add("refused")
        else:
            outcomes.add("read")
            assert len(tensors["pixel_values_videos"]) == tensors["video_grid_thw"].prod()

    assert outcomes == {"refused", "read"}
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    "kwargs",
    [
        {"size": {"shortest_edge": 1, "longest_edge": 1 << 60}},
        {"size": {"shortest_edge": 1 << 40, "longest_edge": 1 << 41}},
        {"size": 7},
        {"size": {"shortest_edge": "a", "longest_edge": "b"}},
        {"max_pixels": -5},
        {"min_pixels": 10**30, "max_pixels": 10**31},
        {"do_resize": False},
    ],
)
def test_settings_of_other_sizes_are_refused_or_bounded(kwargs: dict[str, object], processor: FramesProcessor) -> None:
    try:
        tensors = processor.process(video(4), kwargs)
    except MediaError as error:
        assert str(error)
    else:
        assert tensors["pixel_values_videos"].size < 1 << 24


async def test_other_requests_are_answered_beside_a_video_that_takes_too_long(
    serve_model: ServeModel, model_directory: ModelDirectory
) -> None:
    others = video_processes()
    async with serve_model(model_directory("qwen2_vl"), video_timeout_s=1) as stub:
        await stub.RenderChat(chat(("video", video(4))))
        [process] = video_processes() - others
        process.suspend()
        with pytest.raises(grpc.RpcError, match=r"it took longer than 1 s \(video_timeout_s\)"):
            await stub.RenderChat(chat(("video", video(6))))

        answer = await stub.RenderChat(chat(("video", video(4, seed=1))))

    assert len(answer.mm_features) == 1


def video_processes() -> set[psutil.Process]:
    """Return the processes that read videos, of all services of this process."""
    return {child for child in psutil.Process().children() if MODULE in child.cmdline()}


async def test_the_reason_names_the_video(stub_of: StubOf) -> None:
    stub = await stub_of("qwen2_vl")

    with pytest.raises(grpc.RpcError) as refused:
        await stub.RenderChat(chat(("video", video(4)), ("video", b"nonsense")))

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert str(refused.value.details()).startswith("Failed to load video 1: the data is no video of these formats")
