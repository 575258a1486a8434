"""Lookup: finds the earlier responses and items that a request refers to."""

from collections.abc import Sequence

from tetrad.frontend.api.http.responses.bodies import InputItem
from tetrad.frontend.api.http.responses.items import item_type, response_of_item
from tetrad.frontend.api.http.responses.objects import Json
from tetrad.frontend.api.http.responses.store import ResponseStore, history_of
from tetrad.frontend.net.side_thread import unless_short
from tetrad.services.errors import InvalidRequest, NotFound

MANY_ITEMS = 256
"""Number of items from which validation takes place in a side thread: about 4 ms."""


async def history_before(store: ResponseStore, previous_id: str | None) -> list[Json]:
    """Return the items of the conversation that a response continues, oldest first; none if it continues none.

    Raises:
        NotFound: the response, or one that it continues, is not stored.
        InvalidRequest: the response is not complete.
    """
    if previous_id is None:
        return []
    try:
        return history_of(await store.chain(previous_id))
    except NotFound as error:
        text = f"Previous response: {error.message}"
        raise NotFound(text, field="previous_response_id", reason="PREVIOUS_RESPONSE_NOT_FOUND") from None


async def resolved_items(store: ResponseStore, items: Sequence[InputItem]) -> list[InputItem]:
    """Return the items with each reference replaced by its item.

    Raises:
        NotFound: an item is not stored.
        InvalidRequest: two references name one item. The items of a small body could otherwise fill the memory.
    """
    resolved = list(items)
    stored: dict[int, Json] = {}
    for response_id, places in _referenced(items).items():
        found = await _items_of(store, response_id)
        for item_id, place in places.items():
            if item_id not in found:
                raise _missing(item_id, place)
            stored[place] = found[item_id]
    validated = await unless_short(
        lambda: [InputItem.model_validate(item) for item in stored.values()], is_short=len(stored) < MANY_ITEMS
    )
    for place, item in zip(stored, validated, strict=True):
        resolved[place] = item
    return resolved


def _referenced(items: Sequence[InputItem]) -> dict[str, dict[str, int]]:
    """Return the ids that references name, with the place of each reference, by the id of their response."""
    referenced: dict[str, dict[str, int]] = {}
    for place, item in enumerate(items):
        if item_type(item) != "item_reference":
            continue
        item_id = item.id or ""
        response_id = response_of_item(item_id)
        if response_id is None:
            raise _missing(item_id, place)
        places = referenced.setdefault(response_id, {})
        if item_id in places:
            text = f"input.{place}: Duplicate item found with id {item_id!r}: input.{places[item_id]} is the same item."
            raise InvalidRequest(text, field=f"input.{place}.id")
        places[item_id] = place
    return referenced


async def _items_of(store: ResponseStore, response_id: str) -> dict[str, Json]:
    """Return the items of a response by id; none if it is not stored."""
    try:
        stored = await store.get(response_id)
    except NotFound:
        return {}
    return {each["id"]: each for each in (*stored.input_items, *stored.response["output"])}


def _missing(item_id: str, place: int) -> NotFound:
    return NotFound(f"Item with id {item_id!r} not found.", field=f"input.{place}.id", reason="ITEM_NOT_FOUND")
