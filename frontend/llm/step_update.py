"""StepUpdate: the part of an engine step for one sequence; used by the output processor.

Selects the ids of a step that have text, and whether their texts are needed token by token.
"""

from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.request.steps import RichUpdate
from tetrad.frontend.tokenizer.wire import Row
from tetrad.services.errors import TetradError

PLAIN = RichUpdate()
"""The update of a step that has ids only."""


class StepUpdate:
    """The outputs of one step for one sequence, received at `received_ns`. The text deltas of its rows are added later."""

    __slots__ = ("active", "deltas", "ids", "prompt_texts", "received_ns", "rich", "rows")

    def __init__(self, active: ActiveSequence, ids: list[int], rich: RichUpdate | None, received_ns: int) -> None:
        self.received_ns = received_ns
        self.active = active
        self.ids = ids
        self.rich = rich or PLAIN
        self.rows = _rows(active.sequence, ids, self.rich)
        self.deltas: list[str | TetradError] = []
        self.prompt_texts: list[str | None] = []

    def texts(self) -> list[str | None]:
        """Return the text of each row; None for a row of several ids or without text."""
        added = zip(self.rows, self.deltas, strict=False)
        return [delta if isinstance(delta, str) else None for row, delta in added if len(row.token_ids) == 1]


def _rows(sequence: Sequence, ids: list[int], rich: RichUpdate) -> list[Row]:
    """Return the ids to detokenize: one row of all ids, or one row per token where the text of each token is needed."""
    params = sequence.params
    if not params.detokenize:
        return []
    by_token = sequence.has_stops or sequence.logprobs is not None
    if rich.finish_reason == "stop" and not params.include_stop_str_in_output:
        # The id that stopped the engine is part of the ids, not of the text.
        ids = ids[:-1]
        # An empty row makes the detokenizer flush the bytes that it has held back. It is a row of its own also behind other
        # ids: the texts of these must not depend on whether they are in the same step.
        if not ids:
            return [Row(sequence, [])] if sequence.output_token_ids else []
        if by_token:
            return [*(Row(sequence, [token_id]) for token_id in ids), Row(sequence, [])]
    if by_token and len(ids) > 1:
        return [Row(sequence, [token_id]) for token_id in ids]
    return [Row(sequence, ids)] if ids or rich.finish_reason is not None else []
