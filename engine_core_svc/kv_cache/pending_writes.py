"""PendingWrites: blocks that are registered as cached while the plan that writes them is in flight.

Called by the cache manager. A request that fails alone writes nothing from the failed step on. Other requests may have found
its blocks meanwhile, and further requests the blocks of those: this class tracks all transitive readers. Results arrive in
order, so every pending write at the time of a failure belongs to the failed step or a later one. Knows step ids, requests'
keys and hashes.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Note:
    key: int
    found: Sequence[bytes]
    registered: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Fallout:
    """The effects of a failure.

    Attributes:
        hashes: registered contents that were not written.
        misled: keys of the requests that began with any of them, including those that have failed because of it.
    """

    hashes: Collection[bytes]
    misled: Collection[int]


class PendingWrites:
    """The writes that the plans in flight rely on, in the order of the plans."""

    def __init__(self) -> None:
        self._planned: list[_Note] = []
        self._in_flight: deque[tuple[int, list[_Note]]] = deque()

    def note_found(self, key: int, hashes: Sequence[bytes]) -> None:
        """Note that a request begins with these cached blocks of other requests."""
        if hashes:
            self._planned.append(_Note(key, hashes, ()))

    def note_registered(self, key: int, hashes: Sequence[bytes]) -> None:
        """Note that a request will write these blocks."""
        self._planned.append(_Note(key, (), hashes))

    def note_sent(self, step_id: int) -> None:
        """Assign the notes since the last call to this step."""
        if self._planned:
            self._in_flight.append((step_id, self._planned))
            self._planned = []

    def note_returned(self, step_id: int) -> None:
        """Drop the writes of this step and of earlier ones: they are done."""
        while self._in_flight and self._in_flight[0][0] <= step_id:
            self._in_flight.popleft()

    def fallout(self, failed: Collection[int]) -> Fallout:
        """Return the consequences of failed requests in the oldest step in flight.

        A failed request is among the misled, too, if another request's failure explains its own.
        """
        hashes: set[bytes] = set()
        misled: set[int] = set()
        for _, notes in self._in_flight:
            for note in notes:
                if not hashes.isdisjoint(note.found):
                    misled.add(note.key)
                if note.key in failed or note.key in misled:
                    hashes.update(note.registered)
        return Fallout(hashes, misled)

    def clear(self) -> None:
        """Forget all writes: the worker is lost, and its blocks with it."""
        self._planned.clear()
        self._in_flight.clear()
