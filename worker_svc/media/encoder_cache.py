"""Encoder cache: the embeddings of media items in host memory, by identifier.

The encoder thread stores items; the compute thread reads and deletes them. The engine core limits the size: it frees items
before it requests others, and api/encoding.py checks the sum.
"""

import threading
from typing import NamedTuple

from tetrad.worker_svc.core.media import EncodedItem


class _Entry(NamedTuple):
    """An item, and the id of the last plan before its request in the stream."""

    encoded: EncodedItem
    after_step: int


class EncoderCache:
    """See EncodedItems."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._stream_id = 0
        # Guards both: an item of a stream that ends must not be stored behind the deletion of that stream's items.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def restart(self, stream_id: int) -> None:
        """See EncodedItems."""
        with self._lock:
            self._entries.clear()
            self._stream_id = stream_id

    def put(self, stream_id: int, identifier: str, encoded: EncodedItem, after_step: int) -> None:
        """See EncodedItems."""
        with self._lock:
            if stream_id == self._stream_id:
                self._entries[identifier] = _Entry(encoded, after_step)

    def free(self, identifiers: tuple[str, ...], step_id: int) -> None:
        """See EncodedItems."""
        with self._lock:
            for identifier in identifiers:
                # Steps run later than their plans arrive: meanwhile the item may have been requested and encoded again.
                entry = self._entries.get(identifier)
                if entry is not None and entry.after_step < step_id:
                    del self._entries[identifier]

    def get(self, identifier: str) -> EncodedItem | None:
        """See EncodedItems."""
        with self._lock:
            entry = self._entries.get(identifier)
        return None if entry is None else entry.encoded
