"""Framing: a JSON header and byte strings in one frame, for both sides of the image process."""

import json
import struct
from collections.abc import Mapping
from typing import Any

_LENGTH = struct.Struct("<Q")


def join_frame(header: Mapping[str, Any], *parts: bytes | memoryview) -> bytes:
    """Return a frame of a header and parts; memoryviews are of bytes."""
    all_parts = [json.dumps(header).encode(), *parts]
    lengths = [_LENGTH.pack(len(all_parts)), *(_LENGTH.pack(len(part)) for part in all_parts)]
    return b"".join([*lengths, *all_parts])


def split_frame(frame: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and the parts of a frame."""
    [number] = _LENGTH.unpack_from(frame)
    start = _LENGTH.size * (1 + number)
    parts = []
    for [length] in _LENGTH.iter_unpack(frame[_LENGTH.size : start]):
        parts.append(frame[start : start + length])
        start += length
    return json.loads(parts[0]), parts[1:]
