"""Decoding: reads sampled frames of a video file with FFmpeg's libraries (PyAV), or of the images of its frames.

Runs in the video process. Knows file formats and their limits; knows no models. Frames are yielded one by one, so that a long
video needs no more memory than a short one.
"""

import bisect
import io
import os
from collections.abc import Iterator, Mapping
from typing import Any

import av
from av.error import FFmpegError
from PIL import Image

from tetrad.services.models.video_frames import split_frames
from tetrad.tokenizer_svc.media.images.decoding import decode_image
from tetrad.tokenizer_svc.media.items import MediaError
from tetrad.tokenizer_svc.media.video.timing import Sampling, Timing, given, sampled

FORMATS = ("mov", "matroska", "avi", "mpegts", "flv", "gif", "mpeg", "ogg")
"""FFmpeg's names of the containers that are read; mov is also MP4, matroska also WebM. Others are attacked more often and sent
by no client; some of them (playlists) name further files."""
_WITH_INDEX = ("mov", "matroska", "avi")
"""Containers with an index of their key frames; in others, a search may end behind the frame that is sought."""
_NAMES = "MP4, MOV, WebM, MKV, AVI, MPEG, FLV, OGV and GIF"
_MOST_THREADS = 4
"""A minute of full HD takes a thread half a minute."""
_CODECS = "h264,hevc,vp8,libvpx,vp9,libvpx-vp9,libdav1d,av1,mpeg4,mpeg1video,mpeg2video,mjpeg,theora,gif,h263,flv,msmpeg4v3,png"


class VideoFile:
    """An open video file.

    Args:
        data: the file.
        max_pixels: maximum of width times height of a frame.

    Raises:
        MediaError: the data is no video of `FORMATS`, or its frames have more pixels.
    """

    def __init__(self, data: bytes, *, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        options = {"format_whitelist": ",".join(FORMATS), "codec_whitelist": _CODECS, "protocol_whitelist": "none"}
        try:
            opened: Any = av.open(io.BytesIO(data), options=options, metadata_errors="ignore")
            self._container = opened
            if not self._container.streams.video:
                raise MediaError("the file has no video")
            self._stream = self._container.streams.video[0]
            context = self._stream.codec_context
            if context.name not in _CODECS.split(","):  # the option binds the reader of the container alone
                raise MediaError(f"the video has the codec {context.name!r}, which is not read")
            self._check_size(context.width, context.height)
            context.thread_type, context.thread_count = "AUTO", min(_MOST_THREADS, os.cpu_count() or 1)
            context.options = {"max_pixels": str(max_pixels)}
            packets = [packet for packet in self._container.demux(self._stream) if packet.size]
        except (FFmpegError, MediaError, MemoryError) as error:
            raise _named(error) from None
        except Exception as error:  # PyAV raises any error of Python for files that contradict themselves
            raise MediaError(f"the video is damaged: {type(error).__name__}: {error}") from error
        shown = [packet for packet in packets if not packet.is_discard]  # an edit of the video may leave its start out
        self.num_frames = len(shown)
        has_times = all(packet.pts is not None for packet in packets)
        self._times: list[int] = sorted(packet.pts for packet in shown) if has_times else []
        can_seek = has_times and self._container.format.name.split(",")[0] in _WITH_INDEX
        self._keys: list[int] = sorted(packet.pts for packet in packets if packet.is_keyframe) if can_seek else []
        if not self.num_frames:
            raise MediaError("the video has no frames")

    @property
    def fps(self) -> float:
        """Frames a second, as the file says; 0: it does not."""
        rate = self._stream.average_rate or self._stream.guessed_rate
        return float(rate) if rate else 0.0

    def frames(self, indices: list[int]) -> Iterator[tuple[int, Image.Image]]:
        """Yield the frames of ascending indices, with these; those that are damaged are left out.

        Raises MediaError if a frame has too many pixels.
        """
        try:
            self._container.seek(0, backward=True, any_frame=False, stream=self._stream)
            yield from self._sought(indices) if self._times else self._counted(indices)
        except (FFmpegError, MediaError, MemoryError) as error:
            raise _named(error) from None
        except Exception as error:
            raise MediaError(f"the video is damaged: {type(error).__name__}: {error}") from error
        finally:
            self._container.close()

    def _counted(self, indices: list[int]) -> Iterator[tuple[int, Image.Image]]:
        """Yield the frames of files whose packets have no times: all frames up to the last one are decoded."""
        wanted = iter(indices)
        index = next(wanted)
        for place, frame in enumerate(self._decoded()):
            while index == place:
                yield index, self._image(frame)
                if (index := next(wanted, -1)) < 0:
                    return

    def _sought(self, indices: list[int]) -> Iterator[tuple[int, Image.Image]]:
        """Yield the frames, beginning to decode at the last key frame before each."""
        decoded: Iterator[Any] = self._decoded()
        frame, reached = None, self._times[0] - 1
        for index in indices:
            time = self._times[index]
            key = self._keys[bisect.bisect_right(self._keys, time) - 1] if self._keys and self._keys[0] <= time else None
            if key is not None and key > reached + self._span:
                self._container.seek(key, backward=True, any_frame=False, stream=self._stream)
                decoded, frame = self._decoded(), None
            while frame is None or frame.pts is None or frame.pts < time:
                frame = next(decoded, None)
                if frame is None:
                    return
                reached = frame.pts if frame.pts is not None else reached
            if frame.pts == time:
                yield index, self._image(frame)

    @property
    def _span(self) -> int:
        """The time of some frames: it costs less to decode these than to seek."""
        return (self._times[-1] - self._times[0]) * 4 // max(1, len(self._times))

    def _decoded(self) -> Iterator[Any]:
        """Yield decoded frames; packets that cannot be decoded are left out, as players do."""
        for packet in self._container.demux(self._stream):
            try:
                frames = packet.decode()
            except FFmpegError:
                continue
            yield from frames

    def _image(self, frame: Any) -> Image.Image:
        self._check_size(frame.width, frame.height)
        image: Image.Image = frame.to_image()
        # Cameras turn the picture by a note in the file.
        return image.rotate(frame.rotation, expand=True) if frame.rotation else image

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self._max_pixels:
            size = f"{width} x {height} pixels, {width * height} in all"
            raise MediaError(f"the frames have {size}; the limit is {self._max_pixels} (max_image_pixels)")


class FrameFile:
    """The images of a video's frames.

    Args:
        data: see services/models/video_frames.py.
        max_pixels: maximum number of pixels of a frame.
        max_frames: maximum number of frames.

    Raises MediaError if the data is no such file, or has more frames.
    """

    def __init__(self, data: bytes, *, max_pixels: int, max_frames: int) -> None:
        self._max_pixels = max_pixels
        try:
            self._about, self._images = split_frames(data, max_frames)
        except (ValueError, RecursionError) as error:
            raise MediaError(f"{error} (max_video_frames)" if "more than" in str(error) else str(error)) from None

    def timing(self, kwargs: Mapping[str, Any]) -> Timing:
        """Return the timing; `kwargs` say more of the video than the file. Raises MediaError for values that contradict it."""
        return given({**self._about, **kwargs}, len(self._images))

    def frames(self) -> Iterator[Image.Image]:
        """Yield the frames. Raises MediaError for an image that cannot be read, or has another size than the first."""
        first = None
        for index, image in enumerate(self._images):
            try:
                frame = decode_image(image, max_pixels=self._max_pixels)
            except MediaError as error:
                raise MediaError(f"frame {index}: {error}") from None
            first = first or frame.size
            if frame.size != first:
                raise MediaError(f"frame {index} has {frame.size} pixels, the first one {first}")
            yield frame


def sample_file(file: VideoFile, sampling: Sampling, max_frames: int) -> Timing:
    """Return which frames of a file are read; a file that names no rate is taken for 24 frames a second."""
    return sampled(file.num_frames, file.fps or 24.0, sampling, max_frames)


def _named(error: BaseException) -> BaseException:
    if isinstance(error, FFmpegError):
        return MediaError(f"the data is no video of these formats, or is damaged: {_NAMES} ({error.strerror})")
    return error
