"""AudioFile: audio of this machine as a content part of a chat message. Decodes no samples; the server does."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tetrad.services.errors import InvalidRequest

_SIGNATURES = {b"ID3": "mp3", b"fLaC": "flac", b"OggS": "ogg", b"\x1a\x45\xdf\xa3": "webm"}
"""First bytes of a file -> its format."""
_MPEG_SYNC = 0xFFE0
_ADTS_LAYER = 0x0006


@dataclass(frozen=True, slots=True)
class AudioFile:
    """Audio to send.

    Attributes:
        name: the file's name.
        form: as "wav".
        data: the file's content.
    """

    name: str
    form: str
    data: bytes

    @classmethod
    def read(cls, path: str) -> "AudioFile":
        """Read a file; a leading ~ is the home directory. InvalidRequest if it cannot be read, or is no known kind of audio."""
        try:
            data = Path(path).expanduser().read_bytes()
        except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: no home directory
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InvalidRequest(f"The audio {path!r} cannot be read: {reason}.", field="audio") from error
        return cls(Path(path).name, _form(path, data), data)

    def part(self) -> dict[str, Any]:
        """Return OpenAI's content part, with the file in base64."""
        return {"type": "input_audio", "input_audio": {"data": base64.b64encode(self.data).decode(), "format": self.form}}


def _form(path: str, data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    if data[4:8] == b"ftyp":
        return "m4a"
    for start, form in _SIGNATURES.items():
        if data.startswith(start):
            return form
    sync = int.from_bytes(data[:2])
    if sync & _MPEG_SYNC == _MPEG_SYNC:
        return "mp3" if sync & _ADTS_LAYER else "aac"
    text = f"{path!r} is not audio in the format WAV, MP3, FLAC, Ogg, AAC, M4A or WebM."
    raise InvalidRequest(text, field="audio")
