"""EncoderCache: the outputs of the worker's encoder, as the engine core has planned them.

Owned by Media. Follows vLLM's EncoderCacheManager: an entry has a key and references of requests; entries without references
stay, in the order in which they lost the last one, until their room is needed; plans name the dropped ones to the worker.

The worker may encode an item as soon as it is asked, but drops entries when it executes a plan. So the room of a dropped entry,
and its key, are in use until that plan has returned: the worker's cache never exceeds its size, and no late drop takes an entry
that was made again. Knows nothing of tokens and plans.
"""

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from tetrad.engine_core_svc.core.media import MediaSpan


@dataclass(slots=True, eq=False)
class Entry:
    """One item in the cache.

    Attributes:
        identifier: key of the item.
        content_hash: hash of its content.
        num_embeds: its room, in embeddings.
        is_ready: whether the worker has encoded it.
        is_outdated: whether it is dropped once it has no user.
        users: keys of the running requests that will read it.
        waiting: keys of the requests that have waited for it; empty once it is ready.
    """

    identifier: str
    content_hash: str
    num_embeds: int
    is_ready: bool = False
    is_outdated: bool = False
    users: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)


class EncoderCache:
    """The entries of one worker group.

    Args:
        size: room, in embeddings.

    Attributes:
        size: see above.
        num_used: room in use, that of dropped entries included until the plan that names them has returned.
        num_encoding: number of entries that are not ready.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_used = self.num_encoding = 0
        self._entries: dict[str, Entry] = {}
        self._freeable: dict[str, Entry] = {}  # ready and without users, the first to be dropped first
        self._dropped: list[Entry] = []  # no plan names them yet
        self._in_flight: deque[tuple[int, list[Entry]]] = deque()  # by the plan that names them
        self._leaving: dict[str, int] = {}  # identifiers and rooms of both

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the entries, dropped ones excluded."""
        return iter(self._entries.values())

    @property
    def has_dropped(self) -> bool:
        """Whether the next plan must name dropped entries."""
        return bool(self._dropped)

    def find(self, span: MediaSpan) -> Entry | None:
        """Return the entry of an item; None if there is none."""
        entry = self._entries.get(span.identifier)
        if entry is None or (entry.content_hash, entry.num_embeds) == (span.content_hash, span.num_embeds):
            return entry
        # The identifier was used again for another item; the store holds no request with the former one.
        if entry.identifier in self._freeable:
            self._drop(entry)
        return None

    def allocate(self, span: MediaSpan, *, keep: Container[str] = ()) -> Entry | None:
        """Return a new entry for an item, which is to be encoded; None if there is no room now.

        Entries without users are dropped for it, except those of `keep`.
        """
        if span.identifier in self._entries or span.identifier in self._leaving:
            return None
        num_missing = self.num_used + span.num_embeds - self.size
        if num_missing > 0:
            self._make_room(num_missing - sum(self._leaving.values()), keep)
            return None
        entry = self._entries[span.identifier] = Entry(span.identifier, span.content_hash, span.num_embeds)
        self.num_used += entry.num_embeds
        self.num_encoding += 1
        return entry

    def use(self, entry: Entry, key: int) -> None:
        """Note that a running request will read an entry."""
        entry.users.add(key)
        self._freeable.pop(entry.identifier, None)

    def end_use(self, identifier: str, key: int) -> None:
        """Note that a request does not need an entry any more; unknown entries are ignored."""
        entry = self._entries.get(identifier)
        if entry is not None and key in entry.users:
            entry.users.remove(key)
            self._note_unused(entry)

    def note_encoded(self, identifier: str) -> None:
        """Note that the worker has encoded an item."""
        entry = self._entries[identifier]
        entry.is_ready = True
        entry.waiting.clear()
        self.num_encoding -= 1
        self._note_unused(entry)

    def note_failed(self, identifier: str) -> Entry:
        """Remove and return the entry of an item that the worker could not encode."""
        entry = self._entries.pop(identifier)
        self.num_encoding -= 1
        self.num_used -= entry.num_embeds
        return entry

    def reset(self) -> None:
        """Drop all entries that are ready: those with users once these have read them."""
        for entry in self._freeable.copy().values():
            self._drop(entry)
        for entry in self._entries.values():
            entry.is_outdated = entry.is_ready

    def take_dropped(self, step_id: int) -> list[str]:
        """Return the identifiers of the entries that were dropped since the last call: plan `step_id` names them."""
        if not self._dropped:
            return []
        dropped, self._dropped = self._dropped, []
        self._in_flight.append((step_id, dropped))
        return [entry.identifier for entry in dropped]

    def note_returned(self, step_id: int) -> None:
        """Free the room of the entries that plans up to this one name."""
        while self._in_flight and self._in_flight[0][0] <= step_id:
            for entry in self._in_flight.popleft()[1]:
                del self._leaving[entry.identifier]
                self.num_used -= entry.num_embeds

    def _note_unused(self, entry: Entry) -> None:
        if entry.is_ready and not entry.users:
            self._freeable[entry.identifier] = entry
            if entry.is_outdated:
                self._drop(entry)

    def _make_room(self, num_missing: int, keep: Container[str]) -> None:
        """Drop entries until their room will suffice; none if it cannot."""
        entries = [each for identifier, each in self._freeable.items() if identifier not in keep]
        if sum(each.num_embeds for each in entries) < num_missing:
            return
        for entry in entries:
            if num_missing <= 0:
                return
            num_missing -= entry.num_embeds
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        del self._entries[entry.identifier], self._freeable[entry.identifier]
        self._dropped.append(entry)
        self._leaving[entry.identifier] = entry.num_embeds
