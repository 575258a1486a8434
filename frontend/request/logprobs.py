"""Log-probabilities: converts columns of candidates to one dict per position, with the candidates' texts.

A token that holds part of a character has no text of its own. In an output or a prompt the last token of the character has the
whole character as its text, the tokens before it have an empty text. So the joined texts of the tokens are the whole text.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby

from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.position_logprobs import FlatLogprobs, Logprob, PositionLogprobs, TextOf
from tetrad.frontend.request.steps import LogprobRows

PARTIAL = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes. Longer runs of partial tokens are cut, because decoding them takes quadratic time.
_MAX_RUN = 32
_WIDE = 1024
"""A position with more candidates is filled when its caller reads it, so that other requests of the step do not wait."""


class WidePosition(dict[int, Logprob]):
    """A position with many candidates. It has the actual token only, until `fill` adds the others.

    Args:
        actual: the actual token.
        found: the log-probability of the actual token.
        candidates: the other tokens and their log-probabilities, in falling order.
        text_of: returns the text of a token.
    """

    __slots__ = ("_candidates", "_text_of")

    def __init__(
        self, actual: int, found: Logprob, candidates: Iterator[tuple[int, float]], text_of: Callable[[int], str | None]
    ) -> None:
        super().__init__({actual: found})
        self._candidates, self._text_of = candidates, text_of

    def fill(self) -> None:
        """Add the candidates; further calls do nothing."""
        _add_candidates(self, self._candidates, self._text_of)

    def drop(self) -> None:
        """Remove all candidates but the first, the actual token. This takes milliseconds: do not call it in an event loop."""
        actual = next(iter(self.items()))
        self._candidates = iter(())
        self.clear()
        self.update([actual])


def wide_positions(output: RequestOutput) -> Iterator[WidePosition]:
    """Yield the wide positions of an output; flat lists have none."""
    for positions in (output.prompt_logprobs, *(each.logprobs for each in output.outputs)):
        if isinstance(positions, FlatLogprobs):
            continue
        for position in positions or ():
            if isinstance(position, WidePosition):
                yield position


def positions_of(
    rows: LogprobRows, text_of: Callable[[int], str | None], texts: Sequence[str | None] = ()
) -> list[PositionLogprobs]:
    """Return one dict per position; a WidePosition for many candidates.

    Args:
        rows: the candidates; the first of a position is the actual token, the others are in falling order.
        text_of: returns the text of a token, or None if it is unknown.
        texts: the text that each actual token added to the output, as far as it is known.
    """
    positions: list[PositionLogprobs] = []
    for i, rank in enumerate(rows.ranks):
        start, stop = i * rows.width, (i + 1) * rows.width
        actual = rows.token_ids[start]
        text = _in_context(text_of(actual), texts[i] if i < len(texts) else None)
        found = Logprob(rows.logprobs[start], rank, text)
        pairs = zip(rows.token_ids[start + 1 : stop], rows.logprobs[start + 1 : stop], strict=True)
        if rows.width > _WIDE:
            positions.append(WidePosition(actual, found, pairs, text_of))
        else:
            positions.append({actual: found})
            _add_candidates(positions[-1], pairs, text_of)
    return positions


def flat_positions_of(rows: LogprobRows, text_of: TextOf, texts: Sequence[str | None] = ()) -> FlatLogprobs:
    """Return the candidates of positions_of as flat lists."""
    flat = FlatLogprobs()
    for i, rank in enumerate(rows.ranks):
        start, stop = i * rows.width, (i + 1) * rows.width
        text = _in_context(text_of(rows.token_ids[start]), texts[i] if i < len(texts) else None)
        ids, values = rows.token_ids[start:stop], rows.logprobs[start:stop]
        flat.append_columns(ids, values, rank, text, text_of, names=rows.width <= _WIDE)
    return flat


def num_candidates(*lists: Sequence[PositionLogprobs | None] | None) -> int:
    """Return the total number of candidates of all positions."""
    return sum(len(position) for positions in lists for position in positions or () if position is not None)


def drop_candidates(positions: Iterable[PositionLogprobs | None]) -> None:
    """Free the candidates of wide positions that have been rendered."""
    for position in positions:
        if isinstance(position, WidePosition):
            position.drop()


async def texts_in_context(
    token_ids: Sequence[int],
    text_of: Callable[[int], str | None],
    decode: Callable[[list[list[int]]], Awaitable[list[str]]],
) -> list[str | None]:
    """Return the text that each token adds; `decode` is called once, for all tokens that hold parts of characters."""
    texts = [text_of(token_id) for token_id in token_ids]
    runs = list(_runs([text is not None and PARTIAL in text for text in texts]))
    prefixes = [list(token_ids[start : end + 1]) for start, stop in runs for end in range(start, stop)]
    decoded = iter(await decode(prefixes) if prefixes else [])
    for start, stop in runs:
        shown = ""
        for place in range(start, stop):
            text = next(decoded)
            complete = text if place == stop - 1 else text.rstrip(PARTIAL)
            texts[place], shown = complete[len(shown) :], complete
    return texts


def _add_candidates(
    position: PositionLogprobs, candidates: Iterator[tuple[int, float]], text_of: Callable[[int], str | None]
) -> None:
    for rank, (token_id, logprob) in enumerate(candidates, start=1):
        # The actual token is often also one of the top tokens: it keeps its first place.
        position.setdefault(token_id, Logprob(logprob, rank, text_of(token_id)))


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each run of true flags."""
    for is_partial, members in groupby(range(len(flags)), key=flags.__getitem__):
        places = list(members)
        if is_partial:
            for start in range(places[0], places[-1] + 1, _MAX_RUN):
                yield start, min(start + _MAX_RUN, places[-1] + 1)


def _in_context(own: str | None, added: str | None) -> str | None:
    """Return the text that a token added, else its own text; special tokens add no text and keep their name."""
    if added is None or (not added and own is not None and PARTIAL not in own):
        return own
    return added
