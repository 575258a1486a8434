"""ImageFile: an image of this machine as a content part of a chat message. Decodes no pixels; the server does."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tetrad.services.errors import InvalidRequest

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
    b"II*\x00": "image/tiff",
    b"MM\x00*": "image/tiff",
}
"""First bytes of a file -> its media type."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image to send.

    Attributes:
        name: the file's name.
        media_type: as "image/png".
        data: the file's content.
    """

    name: str
    media_type: str
    data: bytes

    @classmethod
    def read(cls, path: str) -> "ImageFile":
        """Read a file; a leading ~ is the home directory. InvalidRequest if it cannot be read, or is no known kind of image."""
        try:
            data = Path(path).expanduser().read_bytes()
        except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: no home directory
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InvalidRequest(f"The image {path!r} cannot be read: {reason}.", field="image") from error
        return cls(Path(path).name, _media_type(path, data), data)

    def part(self) -> dict[str, Any]:
        """Return OpenAI's content part, with the image as a data URL."""
        url = f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}


def _media_type(path: str, data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    for start, media_type in _SIGNATURES.items():
        if data.startswith(start):
            return media_type
    text = f"{path!r} is not an image in the format PNG, JPEG, WebP, GIF, BMP or TIFF."
    raise InvalidRequest(text, field="image")
