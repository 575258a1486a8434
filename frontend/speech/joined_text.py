"""JoinedText: joins the texts of a recording's pieces, delta by delta. Knows white space; knows no requests."""

WITHOUT_SPACES = frozenset({"ja", "zh", "yue", "th", "lo", "my"})
"""Languages that put no spaces between words."""


class JoinedText:
    """The text of a recording so far.

    White space around the pieces is replaced by one space, or nothing in languages without spaces.

    Args:
        language: code of the text's language; empty: unknown.
    """

    def __init__(self, language: str) -> None:
        self._separator = "" if language in WITHOUT_SPACES else " "
        self._piece = 0
        self._is_at_start = True
        self._has_text = False
        # White space that is only returned if text follows.
        self._held = ""

    def add(self, piece: int, delta: str) -> str:
        """Return the new part of the whole text.

        Args:
            piece: index of the delta's piece; pieces come in order.
            delta: the new part of the piece's text.
        """
        if piece != self._piece:
            self._piece, self._is_at_start = piece, True
            self._held = self._separator if self._has_text else ""
        if self._is_at_start:
            delta = delta.lstrip()
            self._is_at_start = not delta
        text = self._held + delta
        shown = text.rstrip()
        self._held = text[len(shown) :]
        self._has_text = self._has_text or bool(shown)
        return shown
