"""Store: stores responses and their input, so that clients can read and continue them after a restart.

This file has the store's interface and NoStore; sqlite_store.py stores them in a file. Knows responses as JSON; knows no
requests.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from tetrad.services.errors import InvalidRequest, NotFound

Json = dict[str, Any]

UNFINISHED = ("queued", "in_progress")


@dataclass(frozen=True)
class StoredResponse:
    """A response and its input items, without those of earlier responses."""

    response: Json
    input_items: list[Json]


class ResponseStore(Protocol):
    """The interface of a store. Every call is atomic and raises Unavailable if the store cannot be used."""

    async def create(self, stored: StoredResponse) -> None:
        """Store a new response. Only this process can finish an unfinished response: it has failed if the process ends."""

    async def finish(self, stored: StoredResponse) -> StoredResponse | None:
        """Store the final state of a response, unless it has been deleted or has a final state already.

        Returns the response's present state; None: it is not stored.
        """

    async def cancel(self, response_id: str) -> StoredResponse:
        """Mark an unfinished response as cancelled; return its present state. NotFound if it is not stored."""

    async def stopped_of(self, response_ids: Collection[str]) -> list[str]:
        """Return those of these responses that were cancelled or deleted."""

    async def get(self, response_id: str) -> StoredResponse:
        """Return a response; NotFound if it is not stored."""

    async def chain(self, response_id: str) -> list[StoredResponse]:
        """Return a response and all that it continues, oldest first.

        Raises:
            NotFound: the response, or one that it continues, is not stored.
        """

    async def delete(self, response_id: str) -> None:
        """Delete a response; NotFound if it is not stored."""

    async def close(self) -> None:
        """Release the store's resources."""


class NoStore:
    """Stores no responses: the setting responses-store is `none`."""

    async def create(self, stored: StoredResponse) -> None:
        """Do nothing."""

    async def finish(self, stored: StoredResponse) -> None:
        """Return None."""

    async def cancel(self, response_id: str) -> StoredResponse:
        """Raise NotFound."""
        raise not_found(response_id)

    async def stopped_of(self, response_ids: Collection[str]) -> list[str]:  # noqa: ARG002 - the store's interface
        """Return an empty list."""
        return []

    async def get(self, response_id: str) -> StoredResponse:
        """Raise NotFound."""
        raise not_found(response_id)

    async def chain(self, response_id: str) -> list[StoredResponse]:
        """Raise NotFound."""
        raise not_found(response_id)

    async def delete(self, response_id: str) -> None:
        """Raise NotFound."""
        raise not_found(response_id)

    async def close(self) -> None:
        """Do nothing."""


def history_of(chain: list[StoredResponse]) -> list[Json]:
    """Return the items of a chain in the order of the conversation; InvalidRequest if its last response is not final."""
    last = chain[-1].response
    if last["status"] in UNFINISHED:
        text = f"Response {last['id']!r} is {last['status']}: it can be continued when it is complete."
        raise InvalidRequest(text, field="previous_response_id")
    return [item for stored in chain for item in (*stored.input_items, *stored.response["output"])]


def not_found(response_id: str) -> NotFound:
    """Return the error for a response that is not stored."""
    return NotFound(f"Response with id {response_id!r} not found.", field="response_id", reason="RESPONSE_NOT_FOUND")
