"""Large parts: encodes an answer with long lists and mappings as many pieces of JSON.

An encoder keeps the interpreter lock until it returns: for an answer of 40 MB a tenth of a second. So each large list or
mapping is encoded in slices. A mark stands in its place in the answer until the answer itself is encoded.
"""

import secrets
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar, cast

import msgspec

from tetrad.frontend.api.http.schemas.objects import encode

K = TypeVar("K")
V = TypeVar("V")

_SLICE = 1024
"""Entries that are encoded in less than half a millisecond."""
_LEAST = 256
"""Entries of a large part."""
_PIECE_BYTES = 64 << 10


class LargeParts:
    """The large parts of one answer."""

    def __init__(self) -> None:
        # No text of a client or of a model holds it.
        self._mark = b'"%b:' % secrets.token_hex(16).encode()
        self._parts: list[list[bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def list_of(self, items: list[V], weight: int = 1) -> list[V]:
        """Return the value that represents `items` in the answer: a mark, or a small list itself.

        Args:
            items: may hold marks.
            weight: entries in each item.
        """
        if len(items) * weight < _LEAST:
            return items
        step = max(_SLICE // max(weight, 1), 1)
        slices = (encode(items[start : start + step])[1:-1] for start in range(0, len(items), step))
        return cast("list[V]", self._add(b"[", slices, b"]"))

    def mapping_of(self, items: dict[K, V]) -> dict[K, V]:
        """Return the value that represents `items` in the answer: a mark, or a small mapping itself."""
        if len(items) < _LEAST:
            return items
        pairs = iter(items.items())
        slices = (encode(dict(islice(pairs, _SLICE)))[1:-1] for _ in range(0, len(items), _SLICE))
        return cast("dict[K, V]", self._add(b"{", slices, b"}"))

    def take(self, answer: object) -> list[bytes]:
        """Return an answer that holds the marks as pieces of JSON, and forget its parts."""
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
    """Join small pieces."""
    collected, size = [], 0
    for piece in pieces:
        collected.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            yield b"".join(collected)
            collected, size = [], 0
    yield b"".join(collected)
