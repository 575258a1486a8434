"""Large parts: encodes an answer with long lists and mappings in many pieces of JSON.

An encoder holds the interpreter lock until it returns: 0.1 s for an answer of 40 MB. So each large list or mapping is encoded
in slices. A mark replaces it in the answer until the answer itself is encoded.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, cast

import msgspec

from tetrad.frontend.api.http.schemas.objects import encode

K = TypeVar("K")
V = TypeVar("V")

_SLICE = 1024
"""Number of entries in a slice, which are encoded in less than 0.5 ms."""
_LEAST = 256
"""Minimum number of entries of a large part."""
_PIECE_BYTES = 64 << 10


class LargeParts:
    """The large parts of one answer."""

    def __init__(self) -> None:
        # A random mark, which no text of a client or a model contains.
        self._mark = b'"%b:' % secrets.token_hex(16).encode()
        self._parts: list[list[bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def list_of(self, items: list[V], weight: int = 1) -> list[V]:
        """Return the value for `items` in the answer: a mark, or the list itself if it is small.

        Args:
            items: the list; its items may contain marks.
            weight: number of entries in each item.
        """
        if len(items) * weight < _LEAST:
            return items
        step = max(_SLICE // max(weight, 1), 1)
        slices = (encode(items[start : start + step])[1:-1] for start in range(0, len(items), step))
        return cast("list[V]", self._add(b"[", slices, b"]"))

    def list_made(self, keys: Sequence[K], make: Callable[[K], V]) -> list[V]:
        """Return the value for `[make(key) for key in keys]` in the answer. Of a large list only one slice exists at a time."""
        if len(keys) < _LEAST:
            return list(map(make, keys))
        slices = (encode(list(map(make, keys[start : start + _SLICE])))[1:-1] for start in range(0, len(keys), _SLICE))
        return cast("list[V]", self._add(b"[", slices, b"]"))

    def mapping_of(self, items: dict[K, V]) -> dict[K, V]:
        """Return the value for `items` in the answer: a mark, or the mapping itself if it is small."""
        if len(items) < _LEAST:
            return items
        pairs = iter(items.items())
        slices = (encode(dict(islice(pairs, _SLICE)))[1:-1] for _ in range(0, len(items), _SLICE))
        return cast("dict[K, V]", self._add(b"{", slices, b"}"))

    def take(self, answer: object) -> list[bytes]:
        """Return an answer with marks as pieces of JSON, and drop its parts."""
        pieces = list(_joined(self._resolved(encode(answer))))
        self._parts = []
        return pieces

    def _add(self, opening: bytes, slices: Iterator[bytes], closing: bytes) -> msgspec.Raw:
        part = [opening]
        for each in slices:
            part += [each, b","]
        part[-1] = closing
        self._parts.append(part)
        return msgspec.Raw(b'%b%d"' % (self._mark, len(self._parts) - 1))

    def _resolved(self, encoded: bytes) -> Iterator[bytes]:
        head, *tails = encoded.split(self._mark)
        yield head
        for tail in tails:
            number, rest = tail.split(b'"', 1)
            for piece in self._parts[int(number)]:
                yield from self._resolved(piece)
            yield rest


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces to larger ones."""
    collected, size = [], 0
    for piece in pieces:
        collected.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            yield b"".join(collected)
            collected, size = [], 0
    yield b"".join(collected)
