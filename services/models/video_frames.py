"""Video frames: joins the images of a video's frames to one file, and splits such files.

Clients that have sampled a video themselves send its frames as images; the library sends arrays so. The file travels in place
of a video file between the frontend and the tokenizer. It is a sign, a JSON header and the images, each behind its length.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

SIGN = b"\x00frames\n"
"""First bytes of such a file, which no container of videos has."""
MEDIA_TYPE = "video/jpeg"
"""Media type under which clients send frames, as in vLLM, whatever the format of the images."""
NAMES = ("fps", "frames_indices", "total_num_frames", "duration")
"""What the header may say of the video, in transformers' names: frames a second, the index of each frame among all, the number
of all, and seconds."""
_LENGTH = struct.Struct("<Q")


def join_frames(images: Sequence[bytes], about: Mapping[str, Any]) -> bytes:
    """Return the file of a video.

    Args:
        images: a file of each frame.
        about: values of NAMES.
    """
    parts = [json.dumps(dict(about)).encode(), *images]
    return SIGN + b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def split_frames(file: bytes, most: int) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and the images of a file that begins with SIGN.

    Args:
        file: the file.
        most: maximum number of images.

    Raises:
        ValueError: the file is no such file, or has more images.
    """
    parts: list[bytes] = []
    place = len(SIGN)
    while place < len(file):
        if len(parts) > most:
            raise ValueError(f"it has more than {most} frames")
        if place + _LENGTH.size > len(file):
            raise ValueError("the file of its frames is cut")
        [length] = _LENGTH.unpack_from(file, place)
        place += _LENGTH.size
        if length > len(file) - place:
            raise ValueError("the file of its frames is cut")
        parts.append(file[place : place + length])
        place += length
    if len(parts) < 2:
        raise ValueError("it has no frames")
    about = json.loads(parts[0])
    if not isinstance(about, dict):
        raise ValueError("the header of its frames is no object")  # noqa: TRY004 - see Raises
    return about, parts[1:]
