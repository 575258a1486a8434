"""FramesProcessor: samples, resizes and orders the frames of a video, with Pillow and numpy.

Runs in the video process, without torch. transformers' video processors need torchvision; the rules here have their values.
Rescaling and normalisation are left to the worker: pixels travel as bytes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tetrad.services.models.video_frames import NAMES, SIGN
from tetrad.tokenizer_svc.media.items import MediaError
from tetrad.tokenizer_svc.media.kinds import IO
from tetrad.tokenizer_svc.media.video.decoding import FrameFile, VideoFile, sample_file
from tetrad.tokenizer_svc.media.video.sizes import SIZES
from tetrad.tokenizer_svc.media.video.timing import Sampling, Timing

TIMING = "timing"
"""Name of the tensor that has the timing: int64, bits of fps, bits of the duration, the number of all frames, indices."""
PIXELS, GRID = "pixel_values_videos", "video_grid_thw"
_SAMPLING = ("num_frames", "fps")


class FramesProcessor:
    """A model's video processor.

    Args:
        settings: of the video processor, with its defaults.
        rule: name of a rule in SIZES.
        in_grid: whether frames become rows of patches.
        sampling: arguments of Sampling.
        max_pixels: maximum number of pixels of a frame.
        max_frames: maximum number of frames that are read of a video.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, Any],
        rule: str,
        in_grid: bool,
        sampling: Mapping[str, Any],
        max_pixels: int,
        max_frames: int,
    ) -> None:
        self._settings, self._sizes, self._in_grid = dict(settings), SIZES[rule], in_grid
        self._sampling = Sampling(**sampling)
        self._max_pixels, self._max_frames = max_pixels, max_frames

    def settings(self) -> dict[str, Any]:
        """Return the settings, and those of sampling."""
        sampling = self._sampling
        return {**self._settings, "sampling": [sampling.num_frames, sampling.fps, sampling.least_frames]}

    def process(self, data: bytes, kwargs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the tensors of a video by name: pixels in uint8, other values in int64.

        Args:
            data: a video file, or the file of its frames.
            kwargs: settings of this video that differ from the model's, and under IO those of reading it.

        Raises:
            MediaError: the data is no video, or the settings are refused.
        """
        settings = {**self._settings, **{name: value for name, value in kwargs.items() if name != IO}}
        try:
            settings = with_pixel_limits(settings)
            timing, frames = self._read(data, settings, kwargs.get(IO, {}))
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError) as error:
            text = f"with the settings {dict(kwargs)!r:.100}, the video processor fails: {type(error).__name__}: {error}"
            raise MediaError(text) from error
        tensors: dict[str, NDArray[Any]] = {PIXELS: frames}
        if self._in_grid:
            side, merge, times = settings["patch_size"], settings["merge_size"], settings["temporal_patch_size"]
            tensors[PIXELS], grid = in_patches(frames, side, merge, times)
            tensors[GRID] = np.array(grid, np.int64)
        bits = np.array([timing.fps, timing.duration], np.float64).view(np.int64)
        tensors[TIMING] = np.concatenate([bits, np.array([timing.total, *timing.indices], np.int64)])
        return tensors

    def _read(self, data: bytes, settings: Mapping[str, Any], io: Mapping[str, Any]) -> tuple[Timing, NDArray[np.uint8]]:
        """Return the timing of a video and its resized frames [N, 3, H, W]."""
        about = {name: value for name, value in io.items() if name in NAMES}
        if data.startswith(SIGN):
            file = FrameFile(data, max_pixels=self._max_pixels, max_frames=self._max_frames)
            if "num_frames" in io:
                raise MediaError("media_io_kwargs has 'num_frames', which only video files have: all given frames are read")
            timing = file.timing(about)
            return timing, self._resized(file.frames(), settings, len(timing.indices))
        if other := about.keys() - set(_SAMPLING):
            raise MediaError(f"media_io_kwargs has {min(other)!r}, which only videos that are sent as frames have")
        video = VideoFile(data, max_pixels=self._max_pixels)
        timing = sample_file(video, self._sampling.changed(io), self._max_frames)
        read: list[int] = []

        def noted() -> Iterator[Image.Image]:
            for index, frame in video.frames(list(timing.indices)):
                read.append(index)
                yield frame

        frames = self._resized(noted(), settings, len(timing.indices))
        return Timing(timing.total, timing.fps, timing.duration, read), frames

    def _resized(self, frames: Iterator[Image.Image], settings: Mapping[str, Any], count: int) -> NDArray[np.uint8]:
        resized: list[NDArray[np.uint8]] = []
        sizes, resample = None, Image.Resampling(int(settings["resample"]))
        for frame in frames:
            if sizes is None:
                sizes = self._sizes(settings, count, (frame.height, frame.width)) if settings["do_resize"] else []
                if any(height * width > self._max_pixels or min(height, width) < 1 for height, width in sizes):
                    raise MediaError(f"the frames would be resized to {sizes}; the limit is {self._max_pixels} pixels")
            for height, width in sizes:
                frame = frame.resize((width, height), resample)  # noqa: PLW2901 - the frame at its next size
            pixels = np.asarray(frame).transpose(2, 0, 1)
            if resized and pixels.shape != resized[0].shape:
                raise MediaError("the frames have different sizes")
            resized.append(pixels)
        if not resized:
            raise MediaError("the video is damaged: none of its frames can be decoded")
        return np.stack(resized)


def with_pixel_limits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose `size` has the limits that older files name min_pixels and max_pixels."""
    size = dict(settings.get("size") or {})
    for old, new in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        value = size.pop(old, None)
        value = settings[old] if settings.get(old) is not None else value
        if value is not None:
            size[new] = value
    return {**settings, "size": size}


def in_patches(frames: NDArray[np.uint8], side: int, merge: int, times: int) -> tuple[NDArray[np.uint8], list[int]]:
    """Return rows of patches [N, 3 * times * side * side] in the order of `patchify`, and the grid of time, rows and columns.

    The last frame is repeated until the number of frames is a multiple of `times`. Raises MediaError if patches do not fill
    the frames.
    """
    if rest := -len(frames) % times:
        frames = np.concatenate([frames, np.repeat(frames[-1:], rest, axis=0)])
    count, channels, height, width = frames.shape
    if height % (side * merge) or width % (side * merge):
        raise MediaError(f"frames of {width} x {height} pixels have no whole patches of {side * merge}; resize them")
    rows, cols = height // side, width // side
    shaped = frames.reshape(count // times, times, channels, rows // merge, merge, side, cols // merge, merge, side)
    ordered = shaped.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(-1, channels * times * side * side), [count // times, rows, cols]
