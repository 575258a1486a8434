"""Timing: which frames of a video are read, and when they are shown.

Knows numbers only. Frames are sampled as in vLLM: evenly over the whole video, by their number or by frames a second, whichever
is less.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tetrad.tokenizer_svc.media.items import MediaError

LEAST_FPS, MOST_FPS = 1e-3, 1e3
"""Rates that are believed. Others are of damaged files, or would let positions in time grow without bound."""
MOST_SECONDS = 24 * 3600.0
"""Longest video that is read."""


@dataclass(frozen=True)
class Sampling:
    """How many frames are read.

    Attributes:
        num_frames: maximum number; -1: no limit but the operator's.
        fps: maximum number of frames for a second of the video; -1: no limit.
        least_frames: with `fps`, number of frames that are read of short videos.
    """

    num_frames: int = 32
    fps: float = -1.0
    least_frames: int = 1

    def changed(self, kwargs: Mapping[str, Any]) -> "Sampling":
        """Return this with the values of a request. Raises MediaError for values of other types."""
        num_frames, fps = kwargs.get("num_frames", self.num_frames), kwargs.get("fps", self.fps)
        if type(num_frames) is not int or (num_frames < 1 and num_frames != -1):
            raise MediaError(f"media_io_kwargs has num_frames {num_frames!r:.40}; it is a number of at least 1, or -1 for all")
        if type(fps) not in (int, float) or not (fps == -1 or LEAST_FPS <= fps <= MOST_FPS):
            raise MediaError(f"media_io_kwargs has fps {fps!r:.40}; it is {LEAST_FPS} to {MOST_FPS}, or -1 for all")
        return Sampling(num_frames, float(fps), self.least_frames)


@dataclass(frozen=True)
class Timing:
    """A video, and the frames that are read of it.

    Attributes:
        total: number of its frames.
        fps: frames a second.
        duration: seconds.
        indices: of the frames that are read, ascending.
    """

    total: int
    fps: float
    duration: float
    indices: Sequence[int]

    @property
    def seconds(self) -> list[float]:
        """When each frame that is read is shown."""
        return [index / self.fps for index in self.indices]

    @property
    def read_fps(self) -> float:
        """Frames a second among those that are read."""
        return len(self.indices) / self.total * self.fps


def checked_fps(fps: float) -> float:
    """Return the frames a second of a video. Raises MediaError for rates that are not believed."""
    if not LEAST_FPS <= fps <= MOST_FPS:
        raise MediaError(f"the video has {fps:g} frames a second; the limits are {LEAST_FPS} and {MOST_FPS}")
    return float(fps)


def sampled(total: int, fps: float, sampling: Sampling, most_frames: int) -> Timing:
    """Return which frames of a video are read.

    Args:
        total: number of its frames, at least 1.
        fps: frames a second.
        sampling: how many are read.
        most_frames: the operator's limit.

    Raises:
        MediaError: the video is too long.
    """
    duration = total / checked_fps(fps)
    if duration > MOST_SECONDS:
        raise MediaError(f"the video is {duration:.0f} s long; the limit is {MOST_SECONDS:.0f}")
    count = min(total, most_frames)
    if sampling.num_frames > 0:
        count = min(count, sampling.num_frames)
    if sampling.fps > 0:
        count = min(count, max(sampling.least_frames, math.floor(duration * sampling.fps)))
    indices = np.linspace(0, total - 1, max(1, count), dtype=int).tolist()
    return Timing(total, fps, duration, indices)


def given(about: Mapping[str, Any], num_frames: int) -> Timing:
    """Return the timing of a video whose frames were sampled before.

    Args:
        about: what the client says of the video; see NAMES in services/models/video_frames.py.
        num_frames: number of frames.

    Raises:
        MediaError: a value is of another type, or contradicts the others.
    """
    fps = checked_fps(_number(about, "fps", 1.0))
    indices = about.get("frames_indices")
    if indices is None:
        indices = list(range(num_frames))
    is_ascending = isinstance(indices, list) and all(type(each) is int and each >= 0 for each in indices)
    if not is_ascending or indices != sorted(indices) or len(indices) != num_frames:
        raise MediaError(f"media_io_kwargs has frames_indices {indices!r:.60}; {num_frames} ascending numbers are needed")
    total = about.get("total_num_frames")
    if total is None:
        total = indices[-1] + 1
    if type(total) is not int or total <= indices[-1]:
        raise MediaError(f"media_io_kwargs has total_num_frames {total!r:.40}; the last of its frames has index {indices[-1]}")
    duration = _number(about, "duration", total / fps)
    if not 0 <= duration <= MOST_SECONDS or total / fps > MOST_SECONDS:
        raise MediaError(f"the video is {max(duration, total / fps):g} s long; the limit is {MOST_SECONDS:.0f}")
    return Timing(total, fps, duration, indices)


def _number(about: Mapping[str, Any], name: str, default: float) -> float:
    value = about.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not math.isfinite(value):
        raise MediaError(f"media_io_kwargs has {name} {value!r:.40}, which is no number")
    return float(value)
