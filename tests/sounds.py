"""Sounds for tests: encoded audio that needs no model to make."""

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

CODECS = {"wav": "pcm_s16le", "mp3": "libmp3lame", "flac": "flac", "ogg": "libopus", "m4a": "aac", "webm": "libopus"}
"""Name of a form of audio files, and the codec in them."""
_CONTAINERS = {"m4a": "mp4"}
_FORMATS = {"pcm_s16le": "s16", "pcm_f32le": "flt", "flac": "s16"}


def samples(seconds: float, rate: int = 16_000, seed: int = 0) -> Samples:
    """Return mono samples [N] of a few tones that change, below 0.5."""
    dice = np.random.default_rng(seed)
    times = np.arange(round(seconds * rate)) / rate
    tones = [
        np.sin(2 * np.pi * times * pitch * (1 + times * bend)) for pitch, bend in dice.uniform((80, 0), (900, 0.5), (4, 2))
    ]
    return (0.1 * np.sum(tones, axis=0) * (0.6 + 0.4 * np.sin(7 * times))).astype(np.float32)


def encoded(tracks: NDArray[Any], form: str = "wav", rate: int = 16_000, codec: str | None = None) -> bytes:
    """Return samples [N], or [channels, N], as a file."""
    channels = np.atleast_2d(tracks).astype(np.float32)
    codec = codec or CODECS[form]
    file = io.BytesIO()
    with av.open(file, "w", format=_CONTAINERS.get(form, form)) as container:
        layout = "mono" if len(channels) == 1 else "stereo"
        stream: Any = container.add_stream(codec, rate=rate, layout=layout)
        if codec in _FORMATS:
            stream.format = _FORMATS[codec]
        stream.open()
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channels), format="fltp", layout=layout)
        frame.rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        resampler = av.AudioResampler(
            format=stream.format, layout=layout, rate=rate, frame_size=stream.codec_context.frame_size or 0
        )
        frames = [*resampler.resample(frame), *resampler.resample(None)]
        for each in frames:
            container.mux(stream.encode(each))
        container.mux(stream.encode(None))
    return file.getvalue()


def sound(seconds: float, seed: int = 0, form: str = "wav", rate: int = 16_000) -> bytes:
    """Return an audio file of one channel."""
    return encoded(samples(seconds, rate, seed), form, rate)
