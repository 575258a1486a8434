"""Citations: removes Cohere's marks of citations from a text, as vLLM's parser does. The cited text itself stays.

Command models write <co>cited text</co: 0:[1,2],1:[3]>, with indices of tool calls and of their results.
"""

import re

from tetrad.frontend.parsing.elements.json_scanner import Sink

_MARK = re.compile(r"<co>|</co: [0-9:,\[\] ]{0,1000}>")
# The beginning of a mark at the end of a text.
_BEGINNING = re.compile(r"<(?:c(?:o)?|/(?:c(?:o(?::(?: [0-9:,\[\] ]{0,1000})?)?)?)?)?\Z")


class PlainText:
    """Passes a text on unchanged.

    Args:
        sink: receives the text.
    """

    def __init__(self, sink: Sink) -> None:
        self.add = sink

    def end(self) -> None:
        """Do nothing."""


class CitedText:
    """Passes a text on without the marks of citations.

    Args:
        sink: receives the text.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held = ""

    def add(self, text: str) -> None:
        """Append text; what may be the beginning of a mark is held back."""
        text = _MARK.sub("", self._held + text)
        beginning = _BEGINNING.search(text)
        shown = text if beginning is None else text[: beginning.start()]
        self._held = text[len(shown) :]
        if shown:
            self._sink(shown)

    def end(self) -> None:
        """Finish: what was held back is no mark."""
        held, self._held = self._held, ""
        if held:
            self._sink(held)
