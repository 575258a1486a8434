"""Prompt embeddings: the positions of a prompt that are vectors.

The engine core passes them on. It reads them only for prefix hashes: the hash of a block covers the vectors of its positions.
"""

import hashlib
from dataclasses import dataclass

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """Rows of float32 values for some positions of a prompt.

    Attributes:
        content: the values of all rows, one row after another.
        hidden_size: number of values of a row.
        is_token_ids: one byte per position of the prompt: 1 if it is a token id, 0 if it is a row.
    """

    content: bytes
    hidden_size: int
    is_token_ids: bytes

    @property
    def num_rows(self) -> int:
        """The number of positions that are vectors."""
        return len(self.content) // (_FLOAT32_BYTES * self.hidden_size)

    @property
    def size_bytes(self) -> int:
        """The bytes that they add to a message."""
        return len(self.content) + len(self.is_token_ids)

    def digest_of(self, first: int, end: int) -> bytes:
        """Return a digest of the vectors at positions `first` up to `end` (exclusive); empty if there are none."""
        flags = self.is_token_ids[first:end]
        num_rows = flags.count(0)
        if not num_rows:
            return b""
        row_bytes = _FLOAT32_BYTES * self.hidden_size
        start = self.is_token_ids[:first].count(0) * row_bytes
        return hashlib.sha256(flags + self.content[start : start + num_rows * row_bytes]).digest()
