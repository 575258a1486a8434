"""Encodings: the media items that a worker was asked to encode, and its answers.

Used by one executor, on the event loop. Items and steps are independent: an answer comes at any time. An answer for an item
that was not asked for would corrupt the state of the encoder cache: the engine core closes the connection. Knows identifiers;
knows no streams.
"""

from collections.abc import Callable, Iterable

from tetrad.engine_core_svc.core.media import EncoderEvents
from tetrad.engine_core_svc.worker.in_flight import fault
from tetrad.engine_core_svc.worker.watchdog import Watchdog
from tetrad.services.errors import TetradError


class Encodings:
    """The unanswered items of one worker, and the answers that were not taken yet.

    Args:
        timeout_s: maximum seconds without an answer while items are unanswered.
        give_up: called when that time has passed.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], None]) -> None:
        self._unanswered: set[str] = set()
        self._encoded: list[str] = []
        self._failures: dict[str, TetradError] = {}
        self._watchdog = Watchdog(timeout_s, give_up)

    def add(self, identifiers: Iterable[str]) -> None:
        """Add items that the worker is asked to encode now."""
        if not self._unanswered:
            self._watchdog.watch()
        self._unanswered.update(identifiers)

    def note(self, events: EncoderEvents) -> None:
        """Record a worker's answers. Raises InternalError with reason WORKER_FAULT for items that are not being encoded."""
        for identifier in (*events.encoded, *events.failures):
            if identifier not in self._unanswered:
                raise fault(f"it answered item {identifier!r}, which it was not to encode")
            self._unanswered.remove(identifier)
        self._encoded += events.encoded
        self._failures.update(events.failures)
        if self._unanswered:
            self._watchdog.watch()
        else:
            self._watchdog.rest()

    def take(self) -> EncoderEvents | None:
        """Return the answers since the last call; None if there are none."""
        if not (self._encoded or self._failures):
            return None
        events = EncoderEvents(self._encoded, self._failures)
        self._encoded, self._failures = [], {}
        return events

    def close(self) -> None:
        """Stop waiting for answers."""
        self._watchdog.close()
