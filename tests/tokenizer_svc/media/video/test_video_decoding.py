"""Decoding: sampled frames are those of the whole video in order of their times, in every container."""

import io
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.video_files import moving, video
from tetrad.tokenizer_svc.media.items import MediaError
from tetrad.tokenizer_svc.media.video.decoding import VideoFile

COUNT, MOST = 120, 1 << 24
CONTAINERS = (
    ("libx264", "mp4"),
    ("libx264", "mov"),
    ("libx264", "matroska"),
    ("libx264", "mpegts"),
    ("libx264", "flv"),
    ("libvpx-vp9", "webm"),
    ("libvpx", "webm"),
    ("mpeg4", "avi"),
    ("mpeg2video", "mpeg"),
    ("libx265", "mp4"),
)


def all_frames(file: bytes) -> list[np.ndarray]:
    with av.open(io.BytesIO(file)) as container:
        frames = sorted(container.decode(video=0), key=lambda frame: frame.pts)
        return [frame.to_ndarray(format="rgb24") for frame in frames]


def read(file: bytes, indices: list[int]) -> dict[int, np.ndarray]:
    return {index: np.asarray(frame) for index, frame in VideoFile(file, max_pixels=MOST).frames(indices)}


@pytest.mark.parametrize(("codec", "form"), CONTAINERS)
@pytest.mark.parametrize("indices", [[0, 60, 119], [5, 6, 7, 90], list(range(0, 120, 7)), [119]], ids=len)
def test_frames_are_those_of_their_indices(codec: str, form: str, indices: list[int]) -> None:
    try:
        file = video(COUNT, codec=codec, form=form, size=(64, 48), fps=25)
    except av.error.FFmpegError:
        pytest.skip(f"this FFmpeg writes no {codec}")
    whole = all_frames(file)

    found = read(file, indices)

    assert VideoFile(file, max_pixels=MOST).num_frames == len(whole) == COUNT
    assert list(found) == indices
    for index, frame in found.items():
        np.testing.assert_array_equal(frame, whole[index])


def test_a_gif_is_a_video() -> None:
    frames = [Image.fromarray(frame) for frame in moving(6, 32, 24)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=100)

    opened = VideoFile(file.getvalue(), max_pixels=MOST)

    assert (opened.num_frames, opened.fps) == (6, pytest.approx(10.0))
    assert [frame.size for _, frame in opened.frames([0, 3, 5])] == [(32, 24)] * 3


def test_a_camera_s_note_turns_the_frames() -> None:
    class Turned:
        width, height, rotation = 40, 20, -90

        def to_image(self) -> Image.Image:
            image = Image.new("RGB", (40, 20))
            image.putpixel((0, 0), (255, 0, 0))
            return image

    opened: Any = VideoFile(video(2), max_pixels=MOST)
    shown = opened._image(Turned())

    assert shown.size == (20, 40)
    assert shown.getpixel((19, 0)) == (255, 0, 0)


def test_a_file_whose_end_is_missing_gives_the_frames_that_it_has() -> None:
    file = video(COUNT, form="matroska", size=(64, 48))

    found = read(file[: len(file) * 2 // 3], [0, 20, 40])

    assert list(found)[:2] == [0, 20]


def test_a_codec_that_no_client_sends_is_refused():
    with pytest.raises(MediaError, match="the video has the codec 'ffv1', which is not read"):
        VideoFile(video(4, codec="ffv1", form="matroska"), max_pixels=1 << 20)
