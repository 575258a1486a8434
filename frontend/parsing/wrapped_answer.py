"""Wrapped answer: finds and unwraps the forced call of a model that wraps all its output (gpt-oss).

The grammar constrains the output after a mark, or all of an output without marks; a forced call starts with JSON, never with a
mark. Earlier messages are unconstrained: their text is content, and their calls, which no schema checked, are dropped.
"""

from collections.abc import Callable, Iterable

from tetrad.frontend.parsing.elements.interface import Parser
from tetrad.frontend.parsing.elements.pieces import Content, Piece


class WrappedAnswer:
    """Reads one output. A Parser (interface.py).

    Args:
        answer: parser of the unwrapped answer.
        unwrapper: makes parsers of the wrapping format.
        behind: the mark before the answer; empty: the output starts with the answer.
    """

    def __init__(self, answer: Parser, unwrapper: Callable[[], Parser], *, behind: str) -> None:
        self._answer = answer
        self._before, self._around = unwrapper(), unwrapper()
        self._mark = behind
        self._held = ""
        self._is_answer = not behind
        self._is_wrapped = False

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain after `text`."""
        if self._is_answer:
            return self._read_answer(text)
        self._held += text
        if not self._is_wrapped:
            begun = self._held.lstrip()
            if not begun:
                return []
            if begun[0] != self._mark[0]:
                return self._begin_answer(self._held)
            self._is_wrapped = True
        before, mark, behind = self._held.partition(self._mark)
        if mark:
            return [*_contents(self._before.feed(before)), *_contents(self._before.finish()), *self._begin_answer(behind)]
        self._held = _beginning_at_end(before, self._mark)
        return [*_contents(self._before.feed(before[: len(before) - len(self._held)]))]

    def finish(self) -> list[Piece]:
        """Return the pieces of the held-back text."""
        if not self._is_answer:
            return [*_contents(self._before.feed(self._held)), *_contents(self._before.finish())]
        return [*self._pass_on(self._around.finish()), *self._answer.finish()]

    def _begin_answer(self, text: str) -> list[Piece]:
        self._is_answer, self._held = True, ""
        return self._read_answer(text)

    def _read_answer(self, text: str) -> list[Piece]:
        return self._pass_on(self._around.feed(text))

    def _pass_on(self, pieces: Iterable[Piece]) -> list[Piece]:
        return [read for piece in _contents(pieces) for read in self._answer.feed(piece.text)]


def _contents(pieces: Iterable[Piece]) -> list[Content]:
    return [piece for piece in pieces if isinstance(piece, Content)]


def _beginning_at_end(text: str, mark: str) -> str:
    """Return the longest end of `text` that is also a start of `mark`."""
    longest = min(len(mark) - 1, len(text))
    return next((text[-length:] for length in range(longest, 0, -1) if mark.startswith(text[-length:])), "")
