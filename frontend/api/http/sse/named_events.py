"""Named events: encodes server-sent events with their type in the `event` line and in the data, for two APIs."""

from typing import Any

from tetrad.frontend.api.http.schemas.objects import encode

Event = dict[str, Any]
"""The data of one event; its "type" is the event's name."""


def named_event(data: Event) -> bytes:
    """Return `data` as one server-sent event."""
    return encoded_event(data["type"], encode(data))


def encoded_event(name: str, data: bytes) -> bytes:
    """Return encoded data as one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def named_events(events: list[Event]) -> bytes:
    """Return several events, concatenated; empty if there are none."""
    return b"".join(named_event(each) for each in events)
