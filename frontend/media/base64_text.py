"""Base64 of media: decodes files that clients send in JSON. Large ones are decoded in the side thread, in slices."""

import binascii
from functools import partial

from tetrad.frontend.media.items import AUDIO, IMAGE, VIDEO
from tetrad.frontend.net.side_thread import unless_short
from tetrad.services.errors import InvalidRequest

_OPTIONS = {IMAGE: "max_media_bytes", AUDIO: "max_audio_bytes", VIDEO: "max_video_bytes"}
"""Modality -> the option that limits its files; the files of tensors are limited by that of messages."""
_SMALL_CHARS = 1 << 16
_SLICE_CHARS = 1 << 18
"""A multiple of four: each slice is base64 by itself. One is decoded in about half a millisecond."""


async def decode_base64(text: str, where: str, most: int, what: str = "image") -> bytes:
    """Return the file of a base64 text, which may have line breaks.

    Args:
        text: the base64.
        where: the field of the request, for errors.
        most: maximum size of the file in bytes.
        what: the modality, or the name of a tensor, for errors.

    Raises:
        InvalidRequest: the text is empty or no base64, or the file is too large.
    """
    num_chars = len(text) - text.count("\n") - text.count("\r")
    check_size(num_chars // 4 * 3 - 2, where, most, what)
    work = partial(_decoded, text, where, what)
    data = await unless_short(work, is_short=len(text) <= _SMALL_CHARS)
    check_size(len(data), where, most, what)
    return data


def check_size(num_bytes: int, where: str, most: int, what: str = "image") -> None:
    """Raise InvalidRequest for a file that is larger than the limit."""
    if num_bytes > most:
        option = _OPTIONS.get(what, "max_message_bytes")
        text = f"{where}: the {what} has at least {num_bytes} bytes; the limit is {most} ({option})."
        raise InvalidRequest(text, field=where, reason="MEDIA_TOO_LARGE")


def _decoded(text: str, where: str, what: str) -> bytes:
    if "\n" in text:
        text = text.replace("\r", "").replace("\n", "")
    data = bytearray()
    try:
        for start in range(0, len(text), _SLICE_CHARS):
            data += binascii.a2b_base64(text[start : start + _SLICE_CHARS], strict_mode=True)
    except ValueError as error:  # binascii.Error is one
        raise InvalidRequest(f"{where}: Failed to load {what}: it is not base64: {error}.", field=where) from None
    if not data:
        raise InvalidRequest(f"{where}: Failed to load {what}: it is empty.", field=where)
    return bytes(data)
