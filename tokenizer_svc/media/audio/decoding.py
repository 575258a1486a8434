"""Decoding: turns an audio file into mono samples with FFmpeg's libraries (PyAV).

Runs in the audio process. Knows file formats and their limits; knows no models. Of a file with several streams, such as a
video, the first one of sound is read.
"""

import io
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import av
import numpy as np
from av.error import FFmpegError, InvalidDataError
from numpy.typing import NDArray

from tetrad.services.models.audio_samples import SIGN, split_samples
from tetrad.tokenizer_svc.media.items import MediaError

FORMATS = ("wav", "mp3", "flac", "ogg", "aac", "mov", "matroska")
"""FFmpeg's names of the containers that are read; mov is also MP4 and M4A, matroska also WebM. Others are attacked more often
and sent by no client; some of them (playlists) name further files."""
_NAMES = "WAV, MP3, FLAC, Ogg, AAC, MP4 (M4A) and WebM"
_CODECS = (
    "aac,aac_latm,adpcm_ima_wav,adpcm_ms,alac,flac,gsm_ms,libopus,libvorbis,mp1,mp1float,mp2,mp2float,mp3,mp3float,opus,"
    "pcm_alaw,pcm_f32be,pcm_f32le,pcm_f64be,pcm_f64le,pcm_mulaw,pcm_s16be,pcm_s16le,pcm_s24be,pcm_s24le,pcm_s32be,pcm_s32le,"
    "pcm_u8,vorbis"
)
_MAX_CHANNELS, _MAX_RATE = 64, 768_000

Samples = NDArray[np.float32]


def decode_audio(data: bytes, *, sampling_rate: int, max_seconds: float) -> Samples:
    """Return the samples [N] of an audio file, the mean of its channels.

    Args:
        data: the file.
        sampling_rate: samples of a second of the result.
        max_seconds: maximum duration; it is checked while the file is decoded, whatever its header says.

    Raises:
        MediaError: the data is no audio of `FORMATS`, is damaged, has no samples, or is longer.
    """
    if data.startswith(SIGN):
        return _checked(_given(data, sampling_rate, max_seconds))
    most = int(max_seconds * sampling_rate)
    parts: list[Samples] = []
    num_samples = 0
    try:
        options = {"format_whitelist": ",".join(FORMATS), "codec_whitelist": _CODECS, "protocol_whitelist": "none"}
        with av.open(io.BytesIO(data), options=options, metadata_errors="ignore") as container:
            for part in _resampled(_frames(container), sampling_rate):
                parts.append(part)
                num_samples += len(part)
                if num_samples > most:
                    raise MediaError(f"the audio is longer than {max_seconds:g} s (max_audio_seconds)")
    except (MediaError, MemoryError):  # one of PyAV's errors is a MemoryError, too
        raise
    except FFmpegError as error:
        raise MediaError(f"the data is no audio of these formats, or is damaged: {_NAMES} ({error.strerror})") from None
    except Exception as error:  # PyAV raises any error of Python for files that contradict themselves
        raise MediaError(f"the audio is damaged: {type(error).__name__}: {error}") from error
    return _checked(np.concatenate([np.empty(0, np.float32), *parts]))


def _checked(samples: Samples) -> Samples:
    """Raise MediaError for samples that are none, or no numbers."""
    if not len(samples):
        raise MediaError("the audio has no samples")
    if not np.isfinite(samples).all():
        raise MediaError("the audio has samples that are no finite numbers")
    return samples


def _given(data: bytes, sampling_rate: int, max_seconds: float) -> Samples:
    """Return the samples of a file of a program's samples."""
    try:
        rate, column = split_samples(data)
    except ValueError as error:
        raise MediaError(str(error)) from None
    samples = np.frombuffer(column, "<f4").astype(np.float32)
    rate = rate or sampling_rate
    if not 0 < rate <= _MAX_RATE:
        raise MediaError(f"the audio has {rate} samples a second; at most {_MAX_RATE} are read")
    if len(samples) > max_seconds * rate:
        raise MediaError(f"the audio is longer than {max_seconds:g} s (max_audio_seconds)")
    if rate == sampling_rate or not len(samples):
        return samples
    frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
    frame.sample_rate = rate
    return np.concatenate(list(_resampled(iter([frame]), sampling_rate)))


def _frames(container: Any) -> Iterator[Any]:
    """Yield the frames of the first stream of sound; packets that cannot be decoded are left out, as players do."""
    if not container.streams.audio:
        raise MediaError("the file has no audio")
    stream = container.streams.audio[0]
    context = stream.codec_context
    if context.name not in _CODECS.split(","):  # the option binds the reader of the container alone
        raise MediaError(f"the audio has the codec {context.name!r}, which is not read")
    if not 0 < context.channels <= _MAX_CHANNELS or not 0 < context.sample_rate <= _MAX_RATE:
        text = f"the audio has {context.channels} channels of {context.sample_rate} samples a second"
        raise MediaError(f"{text}; at most {_MAX_CHANNELS} of {_MAX_RATE} are read")
    context.thread_count = 1  # one process reads one file, and others wait for the CPUs
    num_damaged = num_frames = 0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except InvalidDataError:
            num_damaged += 1
            continue
        num_frames += len(frames)
        yield from frames
    if num_damaged and not num_frames:
        raise MediaError("the audio is damaged: none of its packets can be decoded")


def _resampled(frames: Iterator[Any], sampling_rate: int) -> Iterator[Samples]:
    """Yield the samples of frames at another rate; a stream may change its own rate and its channels."""
    for (_, layout), group in groupby(frames, lambda frame: (frame.sample_rate, frame.layout.name)):
        resampler = av.AudioResampler(format="fltp", layout=layout, rate=sampling_rate)
        for frame in group:
            frame.pts = None  # gaps of a damaged file are not filled
            yield from _mono(resampler.resample(frame))
        yield from _mono(resampler.resample(None))


def _mono(frames: list[Any]) -> Iterator[Samples]:
    for frame in frames:
        channels = frame.to_ndarray()  # [channels, N]
        yield channels[0] if len(channels) == 1 else channels.mean(axis=0, dtype=np.float32)
