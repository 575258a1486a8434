"""EngineTrials: requests that an engine core may have died of, again and again, and the one that has to prove itself alone.

Called by an engine's requests. A worker's deaths are judged by the engine core; its own have nobody else to judge them, and a
request that ends every engine core it is resumed on would do so for ever. Who was lost with three engine cores in a row
without a token is sent alone; who comes on is acquitted, and who is lost alone twice more is convicted. Knows no streams.
"""

from collections.abc import Iterable

from tetrad.frontend.request.sequence import Sequence

LOSSES_TO_SUSPECT = 3
LOSSES_TO_CONVICT = 5


class EngineTrials:
    """The suspects of one engine core; costs nothing while there are none."""

    def __init__(self) -> None:
        self._on_trial: Sequence | None = None
        self._held: dict[str, Sequence] = {}

    def note_loss(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Note who was lost with an engine core that crashed; return whom that convicts, which the caller ends."""
        for sequence in sequences:
            num_tokens = len(sequence.output_token_ids)
            came_on = num_tokens > sequence.num_tokens_at_loss
            sequence.num_engine_losses = 1 if came_on else sequence.num_engine_losses + 1
            sequence.num_tokens_at_loss = num_tokens
        accused = self._on_trial
        return [accused] if accused is not None and accused.num_engine_losses >= LOSSES_TO_CONVICT else []

    def begin(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Return those that a new engine core may be sent at once; the others follow by `advance`."""
        self._on_trial = None
        self._held = {sequence.request_id: sequence for sequence in sequences}
        return self._next()

    def hold(self, sequence: Sequence) -> bool:
        """Return whether a request has to wait for the end of the trials; one that comes as a suspect begins its own."""
        if self._on_trial is None:
            self._on_trial = sequence if sequence.num_engine_losses >= LOSSES_TO_SUSPECT else None
            return False
        self._held[sequence.request_id] = sequence
        return True

    def forget(self, request_id: str) -> None:
        """Drop a request that has ended."""
        self._held.pop(request_id, None)
        if self._on_trial is not None and self._on_trial.request_id == request_id:
            self._on_trial.num_engine_losses = 0

    def give_up(self, request_id: str) -> None:
        """Drop a request that another engine core goes on with; what it is suspected of it takes along."""
        self._held.pop(request_id, None)
        if self._on_trial is not None and self._on_trial.request_id == request_id:
            self._on_trial = None

    def advance(self) -> list[Sequence]:
        """Return those that may be sent now: the next suspect, or everybody who is left, when the last one came on or ended."""
        accused = self._on_trial
        if accused is None:
            return []
        if accused.num_engine_losses and len(accused.output_token_ids) <= accused.num_tokens_at_loss:
            return []
        accused.num_engine_losses = 0
        return self._next()

    def _next(self) -> list[Sequence]:
        self._on_trial = next((each for each in self._held.values() if each.num_engine_losses >= LOSSES_TO_SUSPECT), None)
        if self._on_trial is not None:
            del self._held[self._on_trial.request_id]
            return [self._on_trial]
        released, self._held = list(self._held.values()), {}
        return released
