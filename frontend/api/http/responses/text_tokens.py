"""Text tokens: finds the tokens of each text of a turn among all tokens that arrived, for their log-probabilities.

Called by ResponseEvents. Tokens of reasoning, calls and marks belong to no text. The joined texts of all tokens are the output;
a delta of the turn is found in it, so that the result does not depend on the number of tokens in a step.
"""

from collections.abc import Sequence

from tetrad.frontend.api.http.schemas.objects import TokenLogprob
from tetrad.frontend.request.logprobs import PARTIAL


def shown_tokens(tokens: Sequence[TokenLogprob], text: str) -> Sequence[TokenLogprob]:
    """Return the tokens without special ones that the text leaves out.

    Args:
        tokens: the tokens that arrived at a time.
        text: the text that they added. All tokens are returned if it is not theirs, as of tokens that a stop string held back.
    """
    shown, end = [], 0
    for token in tokens:
        if text.startswith(token.token, end):
            shown.append(token)
            end += len(token.token)
    # The last character may be unfinished: what stands for it belongs to no token.
    return tokens if text[end:].strip(PARTIAL) else shown


class TextTokens:
    """The tokens that were added and not yet taken."""

    def __init__(self) -> None:
        self._tokens: list[TokenLogprob] = []

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        """Append tokens that arrived."""
        self._tokens += tokens

    def take(self, delta: str, *, is_last: bool) -> list[TokenLogprob]:
        """Return the tokens of a delta of a text, and drop them and all before them. All tokens if none has its text.

        Args:
            delta: new characters.
            is_last: whether it is the last delta for the tokens that were added: marks before it may have the same characters.
        """
        first, last = self._find(delta, is_last=is_last) or (0, len(self._tokens))
        taken, self._tokens = self._tokens[first:last], self._tokens[last:]
        return taken

    def skip(self, delta: str, *, is_last: bool) -> None:
        """Drop the tokens of a delta of reasoning or a call, and all before them. None if the delta is not written as it is."""
        found = self._find(delta, is_last=is_last)
        if found is not None:
            self._tokens = self._tokens[found[1] :]

    def _find(self, delta: str, *, is_last: bool) -> tuple[int, int] | None:
        output = "".join(token.token for token in self._tokens)
        for searched in (delta, delta.lstrip("\n")):  # line breaks between messages may be no tokens
            # At the beginning it continues the text before; what follows it there may be held back, and have it again.
            is_first = not is_last or output.startswith(searched)
            start = output.find(searched) if is_first else output.rfind(searched)
            if start >= 0:
                return self._places(start, start + len(searched))
        return None

    def _places(self, start: int, end: int) -> tuple[int, int]:
        first, offset = None, 0
        for place, token in enumerate(self._tokens):
            if offset >= end:
                return first or 0, place
            offset += len(token.token)
            # A token without a text of its own holds a part of the next character.
            if first is None and (offset > start or (offset == start and not token.token)):
                first = place
        return first or 0, len(self._tokens)
