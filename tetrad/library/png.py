"""PNG: writes pixels as the content of a PNG file, with the standard library alone. Knows no images of other packages."""

import struct
import zlib

_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""Number of channels -> colour type of the file: grey, grey with alpha, RGB, RGB with alpha."""
MOST_CHANNELS = max(_COLOUR_TYPES)
_VALUES, _DIFFERENCES = b"\0", b"\1"
"""First byte of a row: PNG's filters "none" and "sub"."""
_FASTEST = 1
"""Level of compression: such files exist only between two processes."""


def png_of(values: bytes, width: int, height: int, channels: int, *, is_difference: bool = False) -> bytes:
    """Return a PNG file.

    Args:
        values: the pixels, row by row, one byte for each channel.
        width, height: the size in pixels, at least 1.
        channels: 1 to 4: grey, grey with alpha, RGB, RGB with alpha.
        is_difference: whether each value is that of the pixel minus that of the pixel on its left, modulo 256, which makes a
            photograph's file smaller; a row's first pixels have their own values.
    """
    row = width * channels
    start = _DIFFERENCES if is_difference else _VALUES
    lines = b"".join(start + values[first : first + row] for first in range(0, len(values), row))
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, _FASTEST)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind: bytes, content: bytes) -> bytes:
    """Return a part of the file: its length, kind, content and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
