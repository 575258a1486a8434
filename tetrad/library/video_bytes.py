"""Video bytes: converts a video of a program, which has its frames, to the file that the tokenizer service reads.

Takes arrays and lists of images, also with what is known of the video they were sampled from; bytes of a video file are passed
on as they are. Called by media_prompts.py.
"""

from collections.abc import Mapping
from typing import Any

from tetrad.library.image_bytes import image_bytes
from tetrad.services.errors import InvalidRequest
from tetrad.services.models.video_frames import NAMES, join_frames

_FIELD = "multi_modal_data"
_FRAME_DIMENSIONS, _VIDEO_DIMENSIONS = 3, 4
_DEFAULT_FPS = 24.0
"""transformers' rate of frames of which nothing else is known."""


def video_items(items: Any) -> list[Any]:
    """Return the videos of a prompt, as one video or a list of them, in vLLM's forms.

    A list of images is one video; an array [videos, frames, height, width, channels] are several.
    """
    if _dimensions(items) > _VIDEO_DIMENSIONS:
        return list(items)
    if not isinstance(items, list) or (items and all(map(_is_frame, items))):
        return [items]
    return list(items)


def video_bytes(video: Any, where: str) -> bytes:
    """Return the file of a video; InvalidRequest, which names `where`, for a value that is no video.

    Args:
        video: an array [frames, height, width, channels] of uint8; a list of images; a pair of one of these and of what is
            known of the video (`fps`, `frames_indices`, `total_num_frames`, `duration`); or the content of a video file.
        where: the name of the value.
    """
    if isinstance(video, bytes | bytearray | memoryview):
        return bytes(video)
    about: dict[str, Any] = {"fps": _DEFAULT_FPS}
    if _is_pair(video):
        video, given = video
        about |= {name: _plain(given[name]) for name in NAMES if given.get(name) is not None}
    frames = list(video) if isinstance(video, list | tuple) or _dimensions(video) == _VIDEO_DIMENSIONS else []
    if not frames:
        text = "an array [frames, height, width, channels], a list of images, a pair of these and metadata, or a video file"
        raise InvalidRequest(f"{where} must be {text}, got {type(video).__name__}.", field=_FIELD)
    return join_frames([image_bytes(frame, f"{where}[{place}]") for place, frame in enumerate(frames)], about)


def _is_pair(video: Any) -> bool:
    return isinstance(video, tuple) and len(video) == len(("frames", "about")) and isinstance(video[1], Mapping)


def _is_frame(item: Any) -> bool:
    return (hasattr(item, "save") and hasattr(item, "mode")) or _dimensions(item) == _FRAME_DIMENSIONS


def _dimensions(value: Any) -> int:
    return len(value.shape) if hasattr(value, "__array_interface__") and hasattr(value, "shape") else 0


def _plain(value: Any) -> Any:
    """Return an array or a number of numpy as a value of Python."""
    return value.tolist() if hasattr(value, "tolist") else value
