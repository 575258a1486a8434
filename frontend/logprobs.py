"""Log-probabilities: columns of candidates -> one dict per position, with the candidates' texts."""

from collections.abc import Callable

from tetrad.frontend.outputs import Logprob, PositionLogprobs
from tetrad.frontend.steps import LogprobRows


def positions_of(rows: LogprobRows, text_of: Callable[[int], str | None]) -> list[PositionLogprobs]:
    """Return one dict per position.

    Args:
        rows: candidates; the first of a position is the actual token, the others are in falling order.
        text_of: the text of a token, or None if it is not known.
    """
    positions: list[PositionLogprobs] = []
    for i, rank in enumerate(rows.ranks):
        start, stop = i * rows.width, (i + 1) * rows.width
        actual = rows.token_ids[start]
        position: PositionLogprobs = {actual: Logprob(rows.logprobs[start], rank, text_of(actual))}
        pairs = zip(rows.token_ids[start + 1 : stop], rows.logprobs[start + 1 : stop], strict=True)
        for top_rank, (token_id, logprob) in enumerate(pairs, start=1):
            # The actual token is often one of the top ones: it keeps its first place.
            position.setdefault(token_id, Logprob(logprob, top_rank, text_of(token_id)))
        positions.append(position)
    return positions
