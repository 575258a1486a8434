"""Piece writer: collects the results of a tool parser in as few pieces as possible, and numbers the calls.

White space without text before, between or after calls is layout, not content.
"""

from tetrad.frontend.parsing.elements.pieces import Content, Piece, ToolCallArguments, ToolCallStart


class PieceWriter:
    """Collects pieces until they are taken."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._texts: list[str] = []
        self._is_content = True
        # White space that is content if text follows, and layout if a call follows.
        self._space: list[str] = []
        self._in_text = False
        self._num_calls = 0

    def content(self, text: str) -> None:
        """Append to the answer."""
        if not self._in_text:
            if not text or text.isspace():
                self._space.append(text)
                return
            text = "".join([*self._space, text])
            self._space.clear()
            self._in_text = True
        self._write(text, is_content=True)

    def start(self, name: str, call_id: str = "") -> None:
        """Start the next call."""
        self._space.clear()
        self._in_text = False
        self._close_piece()
        self._pieces.append(ToolCallStart(self._num_calls, name, call_id))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """Append to the arguments of the last call."""
        self._write(text, is_content=False)

    def end(self) -> None:
        """Finish: the output has ended."""
        if not self._num_calls:
            self._write("".join(self._space), is_content=True)
        self._space.clear()

    def take(self) -> list[Piece]:
        """Return the pieces since the last call of this method."""
        self._close_piece()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _write(self, text: str, *, is_content: bool) -> None:
        if is_content != self._is_content:
            self._close_piece()
            self._is_content = is_content
        self._texts.append(text)

    def _close_piece(self) -> None:
        text = "".join(self._texts)
        self._texts.clear()
        if text:
            self._pieces.append(Content(text) if self._is_content else ToolCallArguments(self._num_calls - 1, text))
