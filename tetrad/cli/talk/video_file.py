"""VideoFile: a video of this machine as a content part of a chat message. Decodes no frames; the server does."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tetrad.services.errors import InvalidRequest

_SIGNATURES = {b"\x1a\x45\xdf\xa3": "video/webm", b"GIF8": "image/gif", b"FLV": "video/x-flv", b"OggS": "video/ogg"}
"""First bytes of a file -> its media type."""
_MPEG = (b"\x47", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3")


@dataclass(frozen=True, slots=True)
class VideoFile:
    """A video to send.

    Attributes:
        name: the file's name.
        media_type: as "video/mp4".
        data: the file's content.
    """

    name: str
    media_type: str
    data: bytes

    @classmethod
    def read(cls, path: str) -> "VideoFile":
        """Read a file; a leading ~ is the home directory. InvalidRequest if it cannot be read, or is no known kind of video."""
        try:
            data = Path(path).expanduser().read_bytes()
        except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: no home directory
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InvalidRequest(f"The video {path!r} cannot be read: {reason}.", field="video") from error
        return cls(Path(path).name, _media_type(path, data), data)

    def part(self) -> dict[str, Any]:
        """Return vLLM's content part, with the video as a data URL."""
        url = f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"
        return {"type": "video_url", "video_url": {"url": url}}


def _media_type(path: str, data: bytes) -> str:
    if data[4:8] == b"ftyp":
        return "video/mp4"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "video/x-msvideo"
    for start, media_type in _SIGNATURES.items():
        if data.startswith(start):
            return media_type
    if data.startswith(_MPEG):
        return "video/mpeg"
    text = f"{path!r} is not a video in the format MP4, MOV, WebM, MKV, AVI, MPEG, FLV, OGV or GIF."
    raise InvalidRequest(text, field="video")
