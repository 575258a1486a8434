"""Observers: events that report changes of the engine's state. Used on the event loop only."""

import asyncio


class Observers:
    """The events of all observers."""

    def __init__(self) -> None:
        self._events: set[asyncio.Event] = set()

    def observe(self) -> asyncio.Event:
        """Return an event that is set after every change; the caller clears it, and gives it back to `unobserve`."""
        event = asyncio.Event()
        self._events.add(event)
        return event

    def unobserve(self, event: asyncio.Event) -> None:
        """Stop setting an event."""
        self._events.discard(event)

    def notify(self) -> None:
        """Set the events of all observers: the engine's state has changed."""
        for event in self._events:
            event.set()
