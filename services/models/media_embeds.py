"""Media embeddings: joins the tensor files of an item's embeddings to one file, and splits such files.

Clients that have encoded an item themselves send its embeddings in place of an image or audio file. The file travels between
the frontend and the tokenizer. It is a sign, a JSON list of the tensors' names, and a file of torch.save for each tensor; list
and files stand behind their lengths. Reads no tensors.
"""

import json
import struct
from collections.abc import Mapping

SIGN = b"\x00embeds\n"
"""First bytes of such a file."""
_LENGTH = struct.Struct("<Q")


def join_embeds(tensors: Mapping[str, bytes]) -> bytes:
    """Return the file of an item; `tensors` has a file of torch.save for each name."""
    parts = [json.dumps(list(tensors)).encode(), *tensors.values()]
    return SIGN + b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def split_embeds(file: bytes) -> dict[str, bytes]:
    """Return the files of tensors by name. Raises ValueError for a file of another form."""
    if not file.startswith(SIGN):
        raise ValueError("it is no file of embeddings")
    parts: list[bytes] = []
    place = len(SIGN)
    while place < len(file):
        start = place + _LENGTH.size
        if start > len(file):
            raise ValueError("the file of embeddings is cut")
        [length] = _LENGTH.unpack_from(file, place)
        place = start + length
        if place > len(file):
            raise ValueError("the file of embeddings is cut")
        parts.append(file[start:place])
    names = json.loads(parts[0]) if parts else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) != len(parts) - 1:
        raise ValueError("the file of embeddings has no name for each tensor")
    return dict(zip(names, parts[1:], strict=True))
