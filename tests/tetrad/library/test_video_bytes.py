"""Videos of programs become the file that the tokenizer reads, in all of vLLM's forms."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.video_files import moving, video
from tetrad.library.media_prompts import with_files
from tetrad.library.video_bytes import video_bytes, video_items
from tetrad.services.errors import InvalidRequest
from tetrad.services.models.video_frames import split_frames

FRAMES = moving(3, 20, 10)


def read(file: bytes):
    about, images = split_frames(file, 10)
    return about, np.stack([np.asarray(Image.open(io.BytesIO(image)).convert("RGB")) for image in images])


@pytest.mark.parametrize("form", [FRAMES, list(FRAMES), [Image.fromarray(frame) for frame in FRAMES]], ids=type)
def test_frames_lose_nothing(form):
    about, frames = read(video_bytes(form, "it"))

    assert about == {"fps": 24.0}
    assert (frames == FRAMES).all()


def test_what_is_known_of_a_video_is_kept():
    given = {"fps": np.float64(30.0), "frames_indices": np.array([0, 15, 30]), "total_num_frames": 60, "duration": None}

    about, frames = read(video_bytes((FRAMES, given | {"video_backend": "opencv"}), "it"))

    assert about == {"fps": 30.0, "frames_indices": [0, 15, 30], "total_num_frames": 60}
    assert len(frames) == 3


def test_a_file_is_passed_on():
    file = video(2)

    assert video_bytes(file, "it") == file


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (FRAMES, 1),
        (list(FRAMES), 1),
        ([FRAMES, FRAMES], 2),
        (np.stack([FRAMES, FRAMES]), 2),
        ((FRAMES, {}), 1),
        ([(FRAMES, {}), b"file"], 2),
        (b"file", 1),
        ([None], 1),
    ],
)
def test_one_video_or_several(given, count):
    assert len(video_items(given)) == count


@pytest.mark.parametrize("wrong", [5, "path.mp4", [], np.zeros((3, 4), np.uint8), np.zeros((0, 4, 4, 3), np.uint8)])
def test_other_values_are_refused(wrong):
    with pytest.raises(InvalidRequest, match=r"it must be an array \[frames, height, width, channels\]"):
        video_bytes(wrong, "it")


async def test_images_and_videos_of_a_prompt_become_files():
    prompt = {"prompt": "a", "multi_modal_data": {"image": Image.new("RGB", (4, 4)), "video": [(FRAMES, {"fps": 2}), None]}}

    files = (await with_files(prompt))["multi_modal_data"]

    assert [type(file) for file in files["image"]] == [bytes]
    assert read(files["video"][0])[0] == {"fps": 2}
    assert files["video"][1] is None


async def test_embeddings_are_refused():
    with pytest.raises(InvalidRequest, match="video embeddings are not supported; give the video"):
        await with_files({"prompt": "a", "multi_modal_data": {"video": {"video_embeds": 1}}})
