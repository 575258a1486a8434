"""Reasoning tokens: counts the reasoning tokens of an output, for usage. The number does not depend on the chunks.

The number is exact if the end mark of the reasoning has its own token ids, such as special tokens. Otherwise tokens are divided
in proportion to characters.
"""

from collections.abc import Sequence

from tetrad.frontend.parsing.elements.pieces import Piece, Reasoning
from tetrad.frontend.request.outputs import CompletionOutput


class ReasoningTokens:
    """The counter of one turn.

    Args:
        end_ids: ids of the end mark of the reasoning; they count as reasoning.
    """

    def __init__(self, end_ids: Sequence[int]) -> None:
        self._end_ids = list(end_ids)
        # The last ids, which may be the start of the end mark.
        self._tail: list[int] = []
        self._num_ids = self._num_chars = self._num_reasoning_chars = 0
        self._num_to_end: int | None = None  # tokens up to and including the end mark, once it was received
        self._has_answer = False
        self._is_counted = False

    def count(self, output: CompletionOutput, pieces: Sequence[Piece]) -> int:
        """Return the number of reasoning tokens, once, when the reasoning or the output has ended; 0 in all other calls.

        Args:
            output: the new part of the output.
            pieces: the pieces that were parsed from it.
        """
        if self._is_counted:
            return 0
        self._num_chars += len(output.text)
        self._num_reasoning_chars += sum(len(piece.text) for piece in pieces if isinstance(piece, Reasoning))
        self._has_answer |= any(not isinstance(piece, Reasoning) for piece in pieces)
        if self._num_to_end is None:
            self._num_to_end = self._end_in(output.token_ids)
        self._num_ids += len(output.token_ids)
        # Text that may be the start of a stop string is held back: it arrives after its tokens.
        if not output.finished() and (self._num_to_end is None or not self._num_reasoning_chars):
            return 0
        self._is_counted = True
        if not self._num_reasoning_chars:
            return 0
        return self._num_at_end() if self._num_to_end is None else self._num_to_end

    def _num_at_end(self) -> int:
        if not self._has_answer:
            return self._num_ids
        return round(self._num_ids * self._num_reasoning_chars / self._num_chars)

    def _end_in(self, ids: list[int]) -> int | None:
        """Return the number of tokens up to and including the end mark; None if the mark does not end in `ids`."""
        searched, wanted = self._tail + ids, self._end_ids
        for place in range(len(searched) - len(wanted) + 1):
            if wanted and searched[place : place + len(wanted)] == wanted:
                return self._num_ids - len(self._tail) + place + len(wanted)
        self._tail = searched[max(len(searched) - len(wanted) + 1, 0) :]
        return None
