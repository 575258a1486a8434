"""Audio files of all forms become mono samples at the model's rate; other files are refused in one sentence."""

import io
import random
import struct
import wave

import av
import numpy as np
import pytest

from tests.sounds import CODECS, encoded, samples, sound
from tetrad.services.models.audio_samples import join_samples
from tetrad.tokenizer_svc.media.audio.decoding import Samples, decode_audio
from tetrad.tokenizer_svc.media.items import MediaError

RATE = 16_000


def decoded(data: bytes, rate: int = RATE, most: float = 60) -> Samples:
    return decode_audio(data, sampling_rate=rate, max_seconds=most)


def spectrum(values: Samples) -> Samples:
    """Return the loudness of 40 bands: codecs change phases and add silence."""
    found = np.abs(np.fft.rfft(values[:20_000]))[:8_000].reshape(40, -1).mean(axis=1)
    return found / found.max()


def test_samples_of_floats_are_unchanged() -> None:
    given = samples(1.3)

    assert np.array_equal(decoded(encoded(given, codec="pcm_f32le")), given)


def test_channels_are_averaged() -> None:
    given = samples(0.5)

    found = decoded(encoded(np.stack([given, given * 0.5])))

    assert np.abs(found - given * 0.75).max() < 1e-4


@pytest.mark.parametrize("rate", [16_000, 48_000])
@pytest.mark.parametrize("form", CODECS)
def test_every_form_is_read(form: str, rate: int) -> None:
    found = decoded(sound(1.3, form=form, rate=rate))

    assert abs(len(found) - 1.3 * RATE) < 0.06 * RATE
    assert np.abs(spectrum(found) - spectrum(samples(1.3))).max() < 0.05


def test_a_higher_rate_becomes_the_models() -> None:
    found = decoded(encoded(samples(1, 44_100), rate=44_100, codec="pcm_f32le"))

    assert len(found) == RATE
    assert np.abs(found - samples(1))[200:-200].max() < 0.02


def test_sound_of_a_video_is_read() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        video = container.add_stream("mpeg4", rate=5, width=32, height=32, pix_fmt="yuv420p")
        audio = container.add_stream("aac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples(0.5)[None, :], format="fltp", layout="mono")
        frame.rate = RATE
        for _ in range(3):
            container.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))))
        container.mux(audio.encode(frame))
        container.mux(audio.encode(None))
        container.mux(video.encode(None))

    assert abs(len(decoded(file.getvalue())) - 0.5 * RATE) < 0.15 * RATE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        sound(1)[:40],
        sound(1, form="m4a")[:-400],
        sound(1, form="ogg")[:60],
    ],
    ids=["nothing", "text", "playlist", "list of files", "picture", "cut wav", "cut m4a", "cut ogg"],
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(MediaError, match="the data is no audio of these formats, or is damaged: WAV, MP3"):
        decoded(data)


def test_a_codec_that_no_client_sends_is_refused() -> None:
    """FFmpeg's libraries have hundreds of codecs, most of them rarely used and rarely checked."""
    with pytest.raises(MediaError, match="the audio has the codec 'ac3', which is not read"):
        decoded(encoded(samples(0.5, 48_000), "matroska", 48_000, codec="ac3"))


def test_the_duration_is_measured_not_read() -> None:
    """The header says that the file is short."""
    data = bytearray(sound(3))
    place = data.index(b"data") + 4
    data[place : place + 4] = struct.pack("<I", 0xFFFFFFFF)

    with pytest.raises(MediaError, match=r"the audio is longer than 2 s \(max_audio_seconds\)"):
        decoded(bytes(data), most=2)


def test_a_video_without_sound_and_a_file_without_samples_are_refused() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        video = container.add_stream("mpeg4", rate=5, width=32, height=32, pix_fmt="yuv420p")
        container.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))))
        container.mux(video.encode(None))
    empty = io.BytesIO()
    with wave.open(empty, "wb") as written:
        written.setparams((1, 2, RATE, 0, "NONE", ""))

    with pytest.raises(MediaError, match="the file has no audio"):
        decoded(file.getvalue())
    with pytest.raises(MediaError, match="the audio has no samples"):
        decoded(empty.getvalue())


def test_samples_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(MediaError, match="samples that are no finite numbers"):
        decoded(encoded(np.full(1000, np.nan, np.float32), codec="pcm_f32le"))


@pytest.mark.parametrize(("channels", "rate"), [(65, 16_000), (1, 2_000_000)])
def test_headers_of_absurd_streams_are_refused(channels: int, rate: int) -> None:
    data = bytearray(sound(1))
    place = data.index(b"fmt ") + 10
    data[place : place + 6] = struct.pack("<HI", channels, rate)

    with pytest.raises(MediaError):
        decoded(bytes(data))


@pytest.mark.parametrize("form", CODECS)
def test_damaged_files_end_in_samples_or_in_one_error(form: str) -> None:
    whole, dice = sound(1, form=form), random.Random(form)

    for _ in range(60):
        data = bytearray(whole[: dice.randrange(1, len(whole) + 1)])
        for _ in range(dice.randrange(6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            found = decoded(bytes(data), most=30)
        except MediaError as error:
            assert len(str(error)) < 300
        else:
            assert np.isfinite(found).all()


def test_samples_of_a_program_are_taken_as_they_are() -> None:
    given = samples(1)

    assert np.array_equal(decoded(join_samples(given.tobytes(), RATE)), given)
    assert np.array_equal(decoded(join_samples(given.tobytes(), 0)), given)
    assert abs(len(decoded(join_samples(given.tobytes(), 8000))) - 2 * RATE) < 100


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (join_samples(b"", 1)[:-2], "the file of its samples is cut"),
        (join_samples(b"abc", 1), "the file of its samples is cut"),
        (join_samples(bytes(4), 1 << 31), "2147483648 samples a second"),
        (join_samples(bytes(4 * 4), 1), "longer than 2 s"),
        (join_samples(b"", 0), "has no samples"),
    ],
)
def test_wrong_files_of_samples_are_refused(file: bytes, reason: str) -> None:
    with pytest.raises(MediaError, match=reason):
        decoded(file, most=2)
