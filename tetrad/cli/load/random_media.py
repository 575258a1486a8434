"""RandomMedia: the dataset random-mm, messages with images, videos and audio of random values, so that no cache of media helps.

Its options are those of `vllm bench serve`: kinds of images and videos by their size and number of frames, each with a weight.
A video is sent as images of its frames, which needs no encoder of videos.
"""

import ast
import base64
import io
import math
import random
import wave
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tetrad.cli.load.datasets import CHAT, Prompt
from tetrad.library.png import png_of

_WORDS = ("an", "old", "boat", "on", "the", "river", "in", "front", "of", "a", "small", "town", "with", "many", "red", "roofs")
"""Words that are one token each in most vocabularies."""
_CHANNELS = 3
_RATE, _SAMPLE_BYTES = 16_000, 2
MOST_PIXELS, MOST_FRAMES = 8192, 1024
"""Maximum width and height of an image, and maximum number of frames of a video."""
IMAGE, VIDEO = "image", "video"
MOST_OF_A_KIND: Mapping[str, int] = {IMAGE: 255, VIDEO: 1}
"""vLLM's default of the limits."""


@dataclass(frozen=True)
class Bucket:
    """A kind of image or video.

    Attributes:
        height, width: in pixels.
        num_frames: 1: an image; more: a video.
        weight: how often it is chosen, in proportion to the other weights.
    """

    height: int
    width: int
    num_frames: int = 1
    weight: float = 1.0

    @property
    def modality(self) -> str:
        """What it is."""
        return IMAGE if self.num_frames == 1 else VIDEO


@dataclass(frozen=True)
class RandomMedia:
    """Conversations of one message.

    Args:
        buckets: the kinds of images and videos.
        input_len: number of words of a message.
        output_len: number of tokens of an output.
        num_items: number of images and videos of a message.
        range_ratio: by what part of `num_items` the number differs at most, from 0 to 1.
        limits: maximum number of items of each modality in a message.
        num_audios: number of audios of a message.
        audio_seconds: their length.
    """

    buckets: Sequence[Bucket]
    input_len: int
    output_len: int
    num_items: int = 1
    range_ratio: float = 0.0
    limits: Mapping[str, int] = field(default_factory=lambda: dict(MOST_OF_A_KIND))
    num_audios: int = 0
    audio_seconds: float = 5.0

    @property
    def least_len(self) -> int:
        """The length of every request without its media."""
        return self.input_len + self.output_len

    def prompts(self, number: int, seed: int) -> Iterator[Prompt]:
        """Yield chat requests; the media precede the text."""
        numbers = random.Random(seed)
        for _ in range(number):
            parts = [_visual_part(bucket, numbers) for bucket in self._chosen(numbers)]
            parts += [_audio_part(self.audio_seconds, numbers) for _ in range(self.num_audios)]
            text = " ".join(numbers.choices(_WORDS, k=self.input_len))
            messages = [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
            yield Prompt(CHAT, {"messages": messages, "max_tokens": self.output_len, "ignore_eos": True})

    def _chosen(self, numbers: random.Random) -> Iterator[Bucket]:
        """Yield the items of a message. A modality that has reached its limit is chosen no more."""
        least = math.floor(self.num_items * (1 - self.range_ratio))
        left = dict(self.limits)
        for _ in range(numbers.randint(least, math.ceil(self.num_items * (1 + self.range_ratio)))):
            possible = [each for each in self.buckets if left.get(each.modality, 0) > 0]
            if not possible:
                return
            [bucket] = numbers.choices(possible, [each.weight for each in possible])
            left[bucket.modality] -= 1
            yield bucket


def buckets_of(text: str) -> tuple[Bucket, ...]:
    """Return the kinds of a text such as "{(256, 256, 1): 0.5, (720, 1280, 16): 0.5}"; ValueError for another form."""
    try:
        given = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        given = None
    if not isinstance(given, dict) or not given:
        raise ValueError(
            f"{text[:80]!r} must be like {{(256, 256, 1): 0.5, (720, 1280, 16): 0.5}}: height, width, frames: weight"
        )
    found = tuple(_bucket(sizes, weight) for sizes, weight in given.items())
    # As in vLLM, a kind of weight 0 is none.
    if not any(each.weight for each in found):
        raise ValueError(f"{text[:80]!r} has no weight above 0")
    if not math.isfinite(sum(each.weight for each in found)):
        raise ValueError(f"{text[:80]!r} has weights whose sum is not finite")
    return tuple(each for each in found if each.weight)


def _bucket(sizes: object, weight: object) -> Bucket:
    limits = (MOST_PIXELS, MOST_PIXELS, MOST_FRAMES)
    given = sizes if isinstance(sizes, tuple) else ()
    fits = len(given) == len(limits) and all(type(size) is int for size in given)
    if not fits or not all(0 < size <= most for size, most in zip(given, limits, strict=True)):
        text = f"{sizes!r:.80} must be height, width and frames, from 1 to {MOST_PIXELS}, {MOST_PIXELS} and {MOST_FRAMES}"
        raise ValueError(text)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise ValueError(f"{sizes!r} has the weight {weight!r:.40}; it must be a number of at least 0")
    height, width, num_frames = given
    return Bucket(height, width, num_frames, float(weight))


def _visual_part(bucket: Bucket, numbers: random.Random) -> dict[str, Any]:
    files = [_picture(bucket, numbers) for _ in range(bucket.num_frames)]
    if bucket.modality == IMAGE:
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{files[0]}"}}
    # The media type of frames in vLLM, whatever the format of the images.
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join(files)}"}}


def _picture(bucket: Bucket, numbers: random.Random) -> str:
    pixels = numbers.randbytes(bucket.width * bucket.height * _CHANNELS)
    return base64.b64encode(png_of(pixels, bucket.width, bucket.height, _CHANNELS)).decode()


def _audio_part(seconds: float, numbers: random.Random) -> dict[str, Any]:
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(_SAMPLE_BYTES)
        audio.setframerate(_RATE)
        audio.writeframes(numbers.randbytes(round(seconds * _RATE) * _SAMPLE_BYTES))
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
