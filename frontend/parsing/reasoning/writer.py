"""Reasoning writer: collects the results of a reasoning script; also the parser of such scripts.

White space between marks and text is layout: neither reasoning nor content.
"""

from collections.abc import Callable

from tetrad.frontend.parsing.elements.pieces import Content, Piece, Reasoning
from tetrad.frontend.parsing.elements.script_parser import WrittenScript
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


class ReasoningWriter:
    """Collects pieces until they are taken.

    Args:
        layout: characters that are dropped at both ends of the reasoning and at the start of the content after it.
    """

    def __init__(self, layout: str) -> None:
        self._layout = layout
        self._pieces: list[Piece] = []
        self._reasoning = _Trimmed(layout)
        self._behind_reasoning = False

    def reasoning(self, text: str) -> None:
        """Append to the reasoning."""
        shown = self._reasoning.feed(text)
        if shown:
            self._pieces.append(Reasoning(shown))

    def content(self, text: str) -> None:
        """Append to the content."""
        if self._behind_reasoning:
            text = text.lstrip(self._layout)
        if text:
            self._behind_reasoning = False
            self._pieces.append(Content(text))

    def end_reasoning(self) -> None:
        """Mark the end of the reasoning."""
        # More reasoning may follow later; white space between the two parts is layout, too.
        self._behind_reasoning = True

    def end(self) -> None:
        """Finish: the output has ended, and held-back white space is layout."""

    def take(self) -> list[Piece]:
        """Return the pieces since the last call of this method."""
        pieces, self._pieces = self._pieces, []
        return pieces


ReasoningScript = Callable[[TextSource, ReasoningWriter], Waiting[None]]


class ReasoningParser(WrittenScript[ReasoningWriter]):
    """Reads reasoning and content.

    Args:
        script: reads the output.
        layout: see ReasoningWriter.
    """

    def __init__(self, script: ReasoningScript, *, layout: str = "\n") -> None:
        super().__init__(script, ReasoningWriter(layout))


class _Trimmed:
    """Drops layout at both ends of a text that arrives in pieces."""

    def __init__(self, layout: str) -> None:
        self._layout = layout
        self._begun = False
        self._held: list[str] = []

    def feed(self, text: str) -> str:
        """Return the text that can be passed on; white space at its end is held back."""
        if not self._begun:
            text = text.lstrip(self._layout)
        body = text.rstrip(self._layout)
        if not body:
            self._held.append(text)
            return ""
        shown = "".join((*self._held, body))
        self._begun, self._held = True, [text[len(body) :]]
        return shown
