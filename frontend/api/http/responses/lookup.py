"""Lookup: finds the earlier responses and items that a request refers to."""

from collections.abc import Sequence

from tetrad.frontend.api.http.responses.bodies import InputItem
from tetrad.frontend.api.http.responses.items import item_type, response_of_item
from tetrad.frontend.api.http.responses.objects import Json
from tetrad.frontend.api.http.responses.store import ResponseStore, history_of
from tetrad.services.errors import NotFound


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
    """Return the items with each reference replaced by its item; NotFound if that is not stored."""
    return [
        await _item_of(store, item, place) if item_type(item) == "item_reference" else item for place, item in enumerate(items)
    ]


async def _item_of(store: ResponseStore, reference: InputItem, place: int) -> InputItem:
    response_id = response_of_item(reference.id or "")
    missing = NotFound(f"Item with id {reference.id!r} not found.", field=f"input.{place}.id", reason="ITEM_NOT_FOUND")
    if response_id is None:
        raise missing
    try:
        stored = await store.get(response_id)
    except NotFound:
        raise missing from None
    found = next((each for each in (*stored.response["output"], *stored.input_items) if each["id"] == reference.id), None)
    if found is None:
        raise missing
    return InputItem.model_validate(found)
