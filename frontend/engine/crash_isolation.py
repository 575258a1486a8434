"""Crash isolation: finds the request that crashes engine cores, and the one whose message breaks the session.

Called by the requests of one engine client. The engine core itself finds requests that crash its workers; this module counts
crashes of the engine core. A request that was lost with three engine cores in a row without a new token is a suspect and is
sent alone. A new token clears it; two more losses fail it.

A message that the engine core, or a proxy before it, refuses breaks the stream, and would break the next one, too, because
unfinished requests are sent again. Only messages above the size that every peer reads are suspects; of several, the largest,
because gRPC does not name the message. A second loss on the same engine core fails the requests of the message.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from tetrad.frontend.engine.client_outgoing import AddMessage
from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.request.sequence import Sequence
from tetrad.services.message_size import BATCH_BYTES

LOSSES_TO_SUSPECT = 3
LOSSES_TO_FAIL_ALONE = 5


LOSSES_TO_FAIL = 2


_IN_DOUBT_S = 10.0
"""Seconds after sending in which a message is a suspect: a refusal breaks the stream at once, apart from network delays."""


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


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float
    num_bytes: int
    requests: tuple[tuple[ActiveSequence, int], ...]  # each with its number of tokens at that time


class MessageLosses:
    """The large messages of one session, and the suspects of earlier sessions."""

    def __init__(self) -> None:
        self._sent: list[_Sent] = []
        self._suspects: list[ActiveSequence] = []
        self._num_losses: dict[str, int] = {}

    def note_sent(self, message: AddMessage) -> None:
        """Record a message before it is written."""
        if message.num_bytes > BATCH_BYTES:
            requests = tuple((each, _num_tokens(each.sequence)) for each in message.requests)
            self._sent = [*self._in_doubt(), _Sent(time.monotonic(), message.num_bytes, requests)]

    def note_loss(self, *, by_transport: bool) -> None:
        """Record the loss of the session; `by_transport`: with the error that a refused message causes."""
        in_doubt = self._in_doubt() if by_transport else []
        largest = max(in_doubt, key=lambda sent: sent.num_bytes, default=None)
        self._suspects = [] if largest is None else [each for each, _ in largest.requests]
        self._sent.clear()

    def begin(self, *, is_another_engine: bool) -> list[ActiveSequence]:
        """Start a session; return the requests to fail, because their message has broken two sessions.

        If another engine core is connected, the last one died, which breaks the stream without any fault of a message.
        """
        suspects, self._suspects = self._suspects, []
        if is_another_engine:
            return []
        for each in suspects:
            request_id = each.sequence.request_id
            self._num_losses[request_id] = self._num_losses.get(request_id, 0) + 1
        return [each for each in suspects if self._num_losses[each.sequence.request_id] >= LOSSES_TO_FAIL]

    def forget(self, request_id: str) -> None:
        """Remove a request that has ended or moved to another engine core."""
        self._num_losses.pop(request_id, None)
        self._suspects = [each for each in self._suspects if each.sequence.request_id != request_id]
        self._sent = self._in_doubt()

    def _in_doubt(self) -> list[_Sent]:
        """Return the messages that the engine core may have refused; the others are not kept, for they hold prompts."""
        since = time.monotonic() - _IN_DOUBT_S
        return [sent for sent in self._sent if sent.at >= since and _is_in_doubt(sent)]


def _num_tokens(sequence: Sequence) -> int:
    return len(sequence.output_token_ids)


def _is_in_doubt(sent: _Sent) -> bool:
    """Return whether there is no sign that the engine core has read the message: no new token and no end of a request."""
    return all(not each.sequence.finished and _num_tokens(each.sequence) == before for each, before in sent.requests)
