"""Crash isolation: finds the request that crashes engine cores.

Called by the requests of one engine client. The engine core itself finds requests that crash its workers; this module counts
crashes of the engine core. A request that was lost with three engine cores in a row without a new token is a suspect and is
sent alone. A new token clears it; two more losses fail it.
"""

from collections.abc import Iterable

from tetrad.frontend.request.sequence import Sequence

LOSSES_TO_SUSPECT = 3
LOSSES_TO_FAIL_ALONE = 5


class CrashIsolation:
    """The suspects of one engine core, and the requests that wait while one of them runs alone."""

    def __init__(self) -> None:
        self._suspect: Sequence | None = None
        self._held: dict[str, Sequence] = {}

    def note_loss(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Count the loss of each sequence with a crashed engine core; return the sequences that the caller must fail.

        Sequences that waited for a suspect were not sent to that engine core, only to one before it.
        """
        for sequence in sequences:
            if sequence.request_id in self._held:
                continue
            num_tokens = len(sequence.output_token_ids)
            came_on = num_tokens > sequence.num_tokens_at_loss
            sequence.num_engine_losses = 1 if came_on else sequence.num_engine_losses + 1
            sequence.num_tokens_at_loss = num_tokens
        suspect = self._suspect
        return [suspect] if suspect is not None and suspect.num_engine_losses >= LOSSES_TO_FAIL_ALONE else []

    def begin(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Return the sequences to send to a new engine core at once; `advance` returns the others later."""
        self._suspect = None
        self._held = {sequence.request_id: sequence for sequence in sequences}
        return self._next()

    def hold(self, sequence: Sequence) -> bool:
        """Return whether a request must wait because a suspect runs alone; if none does, a new suspect starts to run alone."""
        if self._suspect is None:
            self._suspect = sequence if sequence.num_engine_losses >= LOSSES_TO_SUSPECT else None
            return False
        self._held[sequence.request_id] = sequence
        return True

    def forget(self, request_id: str) -> None:
        """Remove a request that has ended."""
        self._held.pop(request_id, None)
        if self._suspect is not None and self._suspect.request_id == request_id:
            self._suspect.num_engine_losses = 0

    def give_up(self, request_id: str) -> None:
        """Remove a request that continues on another engine core; its count of losses is kept."""
        self._held.pop(request_id, None)
        if self._suspect is not None and self._suspect.request_id == request_id:
            self._suspect = None

    def advance(self) -> list[Sequence]:
        """Return the next suspect, else all waiting requests, if the last suspect was cleared or has gone; otherwise none."""
        suspect = self._suspect
        if suspect is not None:
            if suspect.num_engine_losses and len(suspect.output_token_ids) <= suspect.num_tokens_at_loss:
                return []
            suspect.num_engine_losses = 0
        return self._next()

    def _next(self) -> list[Sequence]:
        self._suspect = next((each for each in self._held.values() if each.num_engine_losses >= LOSSES_TO_SUSPECT), None)
        if self._suspect is not None:
            del self._held[self._suspect.request_id]
            return [self._suspect]
        released, self._held = list(self._held.values()), {}
        return released
