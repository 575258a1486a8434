"""Audio of programs becomes the file that the tokenizer reads, in all of vLLM's forms."""

import numpy as np
import pytest
import torch

from tests.sounds import samples, sound
from tetrad.library.audio_bytes import audio_bytes, audio_items
from tetrad.library.media_prompts import with_files
from tetrad.services.errors import InvalidRequest
from tetrad.services.models.audio_samples import join_samples, split_samples

GIVEN = samples(0.1)
STEREO = np.stack([GIVEN, GIVEN])


def read(file: bytes):
    rate, column = split_samples(file)
    return rate, np.frombuffer(column, "<f4")


@pytest.mark.parametrize(
    ("form", "rate"),
    [
        (GIVEN, 0),
        (GIVEN.astype(np.float64), 0),
        (GIVEN.tolist(), 0),
        (torch.from_numpy(GIVEN), 0),
        ((GIVEN, 16_000), 16_000),
        ((GIVEN, np.float64(8000)), 8000),
        ((GIVEN.tolist(), 44_100.0), 44_100),
        (STEREO, 0),
        (STEREO.T, 0),
    ],
    ids=["array", "float64", "list", "tensor", "pair", "rate of numpy", "list and rate", "channels", "channels last"],
)
def test_samples_lose_nothing(form, rate):
    found, values = read(audio_bytes(form, "it"))

    assert found == rate
    assert np.array_equal(values, GIVEN)


def test_integers_are_scaled():
    _, values = read(audio_bytes(np.array([-32768, 0, 16384], np.int16), "it"))

    assert values.tolist() == [-1.0, 0.0, 0.5]


def test_a_file_is_passed_on():
    assert audio_bytes(sound(0.1), "it") == sound(0.1)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (GIVEN, 1),
        ((GIVEN, 16_000), 1),
        ([(GIVEN, 16_000), GIVEN], 2),
        ([0.5, 0.25], 1),
        ([GIVEN.tolist()], 1),
        ([], 0),
        ([None], 1),
    ],
)
def test_one_audio_or_several(given, count):
    assert len(audio_items(given)) == count


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("song.wav", "it must be an array of samples, a list of them, a pair of these and the sampling rate, or the bytes"),
        ((GIVEN, 0), "the sampling rate 0; it must be a whole number"),
        ((GIVEN, 8000.5), "the sampling rate 8000.5"),
        ((GIVEN, "fast"), "the sampling rate 'fast'"),
        (np.zeros(3, np.int64), "the dtype int64: samples are floats from -1 to 1, or int16"),
        (np.zeros((2, 3, 4), np.float32), r"the shape [2, 3, 4]: audio is [N]"),
        (np.zeros((100, 100), np.float32), r"the shape [100, 100]: audio is [N]"),
        (["a"], "it must be a list of floats"),
    ],
)
def test_other_values_are_refused(given, message):
    with pytest.raises(InvalidRequest) as refused:
        audio_bytes(given, "it")

    assert message in refused.value.message


async def test_a_prompt_with_audio_has_files():
    prompt = await with_files({"prompt": "a", "multi_modal_data": {"audio": [(GIVEN, 16_000), None]}})

    assert prompt == {"prompt": "a", "multi_modal_data": {"audio": [join_samples(GIVEN.tobytes(), 16_000), None]}}
