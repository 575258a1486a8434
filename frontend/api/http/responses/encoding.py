"""Encoding: encodes responses and their events; those with many log-probabilities in slices, in a side thread.

The last events of a response contain the log-probabilities of its whole text four times.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from tetrad.frontend.api.http.responses.objects import Json
from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.api.http.sse.named_events import Event, encoded_event, named_events
from tetrad.frontend.api.http.sse.rendering import PiecesResponse, rendered

_MOST_OF_TOKEN = 21
"""Maximum number of log-probabilities of one token: its own and those of 20 likely ones."""
_OBJECTS, _LISTS = ("response", "item", "part"), ("output", "content")
"""Fields of events, responses, items and parts whose values contain further objects of these kinds."""


async def encoded_events(events: Sequence[Event]) -> bytes:
    """Return several encoded events, concatenated; empty if there are none."""
    num_logprobs = sum(map(_num_logprobs, events))
    return await rendered(num_logprobs, partial(_in_slices if num_logprobs else named_events, list(events)))


async def response_of(response: Json) -> Response:
    """Return the HTTP response for a response object of this API."""
    num_logprobs = _num_logprobs(response)
    if not num_logprobs:
        return JsonResponse(response)
    return PiecesResponse(await rendered(num_logprobs, partial(pieces_of, response)))


def pieces_of(response: Json) -> list[bytes]:
    """Return a response object as pieces of JSON."""
    parts = LargeParts()
    return parts.take(_marked(response, parts))


def _in_slices(events: list[Event]) -> bytes:
    parts = LargeParts()
    return b"".join(encoded_event(event["type"], b"".join(parts.take(_marked(event, parts)))) for event in events)


def _marked(value: Json, parts: LargeParts) -> Json:
    """Return an event, response, item or part with marks in place of its long lists of log-probabilities."""
    marked: dict[str, Any] = dict(value)
    for key in _OBJECTS:
        if isinstance(marked.get(key), dict):
            marked[key] = _marked(marked[key], parts)
    for key in _LISTS:
        if isinstance(marked.get(key), list):
            marked[key] = [_marked(each, parts) if isinstance(each, dict) else each for each in marked[key]]
    if marked.get("logprobs"):
        marked["logprobs"] = parts.list_of(marked["logprobs"], _MOST_OF_TOKEN)
    return marked


def _num_logprobs(value: Json) -> int:
    """Return an upper estimate of the number of log-probabilities of an event, response, item or part."""
    return len(value.get("logprobs") or ()) * _MOST_OF_TOKEN + sum(map(_num_logprobs, _parts_of(value)))


def _parts_of(value: Json) -> Iterator[Json]:
    yield from (value[key] for key in _OBJECTS if isinstance(value.get(key), dict))
    for key in _LISTS:
        if isinstance(value.get(key), list):
            yield from (each for each in value[key] if isinstance(each, dict))
