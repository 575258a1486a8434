"""Recordings: decoded and cut in a process of its own, with transformers' features of each piece."""

import numpy as np
import pytest
import pytest_asyncio
from transformers import WhisperFeatureExtractor

from tests.sounds import encoded, samples, sound
from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.kinds import ProcessLimits
from tetrad.tokenizer_svc.speech.load import open_recordings
from tetrad.tokenizer_svc.speech.plans import SpeechRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")

RATE = 16_000
TOLERANCE = 1e-4
"""The process has no torch, with which transformers computes here."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recordings(whisper_tokenizer):
    """One process, and one event loop, of all tests."""
    opened = open_recordings(whisper_tokenizer, ProcessLimits(), max_seconds=70.0)
    yield opened
    await opened.close()


def features_of(piece):
    dtype, shape, data = piece.placed.feature.item.tensors["input_features"]
    return np.frombuffer(data, dtype).reshape(shape)


async def prepare(recordings, data, **fields):
    return await recordings.prepare(SpeechRequest(data, **{"language": "en"} | fields))


async def refusal(recordings, data, **fields):
    with pytest.raises(InvalidRequest) as caught:
        await prepare(recordings, data, **fields)
    return caught.value.message, caught.value.field


async def test_a_short_recording_has_transformers_features(recordings, whisper):
    wave = samples(2.5)

    found = await prepare(recordings, encoded(wave, codec="pcm_f32le"))

    [piece] = found.pieces
    assert (found.duration_s, piece.start_s, piece.duration_s) == (2.5, 0.0, 2.5)
    expected = WhisperFeatureExtractor.from_pretrained(whisper)(wave, sampling_rate=RATE, return_tensors="np")
    np.testing.assert_allclose(features_of(piece), expected["input_features"][0], atol=TOLERANCE)


async def test_a_long_recording_has_pieces_that_cover_it(recordings, whisper):
    wave = samples(65.0)
    wave[29 * RATE + 8000 : 29 * RATE + 9600] = 0

    found = await prepare(recordings, encoded(wave, codec="pcm_f32le"))

    first, second, third = found.pieces
    assert (first.duration_s, second.start_s) == (29.5, 29.5)
    assert third.start_s == pytest.approx(second.start_s + second.duration_s)
    assert third.start_s + third.duration_s == pytest.approx(65.0)
    part = wave[int(29.5 * RATE) : round(third.start_s * RATE)]
    expected = WhisperFeatureExtractor.from_pretrained(whisper)(part, sampling_rate=RATE, return_tensors="np")
    np.testing.assert_allclose(features_of(second), expected["input_features"][0], atol=TOLERANCE)


async def test_equal_recordings_have_equal_identifiers(recordings):
    data = sound(31.0)

    first, second, other = [await prepare(recordings, each) for each in (data, data, sound(31.0, seed=1))]

    names = [[piece.placed.feature.identifier for piece in each.pieces] for each in (first, second, other)]
    assert names[0] == names[1]
    assert len({*names[0], *names[2]}) == 4


@pytest.mark.parametrize("form", ["mp3", "flac", "ogg", "m4a", "webm"])
async def test_forms_are_read(recordings, form):
    found = await prepare(recordings, sound(1.0, form=form))

    assert found.duration_s == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "The audio file is empty."),
        (b"no audio", "Invalid or unsupported audio file (audio/x): the data is no audio of these formats"),
        (sound(2.0)[:50], "Invalid or unsupported audio file (audio/x): "),
        (sound(71.0), "Invalid or unsupported audio file (audio/x): the audio is longer than 70 s (max_audio_seconds)."),
    ],
    ids=["empty", "text", "cut off", "long"],
)
async def test_a_file_that_cannot_be_read_is_refused(recordings, data, message):
    found, field = await refusal(recordings, data, media_type="audio/x")

    assert found.startswith(message)
    assert field == "data"


async def test_the_request_is_checked_before_the_file_is_read(recordings):
    assert (await refusal(recordings, b"no audio", language="xx"))[1] == "language"
    assert (await refusal(recordings, b"no audio", prompt="x" * 8193))[1] == "prompt"


async def test_a_model_of_text_has_none(tokenizer):
    assert open_recordings(tokenizer, ProcessLimits(), max_seconds=70.0) is None
