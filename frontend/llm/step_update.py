"""StepUpdate: the part of an engine step for one sequence, inside the output processor.

Selects the ids of a step that have text, and whether their texts are needed token by token.
"""

from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.request.steps import RichUpdate
from tetrad.frontend.tokenizer.detokenizer_client import Row
from tetrad.services.errors import TetradError

PLAIN = RichUpdate()
"""Of a step that brought ids and nothing else."""


class StepUpdate:
    """The outputs of one step for one sequence, received at `received_ns`; later also the text deltas of its rows."""

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
        """Return the text that each id added; None where rows hold several ids or text is missing."""
        added = zip(self.rows, self.deltas, strict=False)
        return [delta if isinstance(delta, str) else None for row, delta in added if len(row.token_ids) == 1]


def _rows(sequence: Sequence, ids: list[int], rich: RichUpdate) -> list[Row]:
    """Return the ids whose text is wanted, as one row; one row a token where the text of each matters."""
    params = sequence.params
    if not params.detokenize:
        return []
    if rich.finish_reason == "stop" and not params.include_stop_str_in_output:
        # The id that stopped the engine is part of the ids, not of the text.
        ids = ids[:-1]
        if not ids:
            # Still a row: held-back bytes are flushed by it.
            return [Row(sequence, [])] if sequence.output_token_ids else []
    if (sequence.has_stops or sequence.logprobs is not None) and len(ids) > 1:
        return [Row(sequence, [token_id]) for token_id in ids]
    return [Row(sequence, ids)] if ids or rich.finish_reason is not None else []
