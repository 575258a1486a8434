"""Videos for tests: small files of moving colours, and the images of their frames, written by PyAV and Pillow."""

import io
from collections.abc import Sequence
from typing import Any

import av
import numpy as np
from PIL import Image

from tetrad.services.models.video_frames import join_frames

Frames = np.ndarray[Any, np.dtype[np.uint8]]


def moving(count: int, width: int = 96, height: int = 64, seed: int = 0) -> Frames:
    """Return frames [count, H, W, 3] of smooth random colours that move to the right."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)
    shown = (Image.fromarray(np.roll(small, step, axis=1)) for step in range(count))
    return np.stack([np.asarray(image.resize((width, height), Image.Resampling.BICUBIC)) for image in shown])


def video(
    count: int = 20,
    *,
    fps: int = 10,
    size: tuple[int, int] = (96, 64),
    codec: str = "libx264",
    form: str = "mp4",
    seed: int = 0,
) -> bytes:
    """Return a video file of `count` frames."""
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1  # equal calls give equal files
        for frame in moving(count, *size, seed=seed):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def frame_file(frames: Frames, **about: float | Sequence[int]) -> bytes:
    """Return the file of a video's frames [N, H, W, 3] as PNG images."""
    return join_frames([png(frame) for frame in frames], about)


def png(frame: Frames) -> bytes:
    """Return a frame [H, W, 3] as a PNG image."""
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "PNG")
    return file.getvalue()
