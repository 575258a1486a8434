"""Store: keeps responses and their input, so that clients can read and continue them after a restart.

This file has the store's interface and the store that keeps nothing; sqlite_store.py keeps them in a file. Knows responses as
JSON; knows no requests.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from tetrad.services.errors import InvalidRequest, NotFound

Json = dict[str, Any]

UNFINISHED = ("queued", "in_progress")


@dataclass(frozen=True)
class StoredResponse:
    """A response and the items it answers, without those of the responses before it."""

    response: Json
    input_items: list[Json]


class ResponseStore(Protocol):
    """Where responses are kept. Every call is atomic and raises Unavailable if the store cannot be used."""

    async def create(self, stored: StoredResponse) -> None:
        """Keep a new response. One that is unfinished is this store's to finish: it has failed when the process ends."""

    async def finish(self, stored: StoredResponse) -> None:
        """Keep the final state of a response, unless it has been deleted or has a final state already."""

    async def cancel(self, response_id: str) -> StoredResponse:
        """Make a response that is unfinished a cancelled one; return it as it is then; NotFound if it is not kept."""

    async def get(self, response_id: str) -> StoredResponse:
        """Return a response; NotFound if it is not kept."""

    async def chain(self, response_id: str) -> list[StoredResponse]:
        """Return a response and all that it continues, oldest first.

        Raises:
            NotFound: it, or one that it continues, is not kept.
        """

    async def delete(self, response_id: str) -> None:
        """Forget a response; NotFound if it is not kept."""

    async def close(self) -> None:
        """Give back what the store holds."""


class NoStore:
    """Keeps nothing: responses-store is `none`."""

    async def create(self, stored: StoredResponse) -> None:
        """Do nothing."""

    async def finish(self, stored: StoredResponse) -> None:
        """Do nothing."""

    async def cancel(self, response_id: str) -> StoredResponse:
        """Raise NotFound."""
        raise not_found(response_id)

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
    """Return the error of a response that is not kept."""
    return NotFound(f"Response with id {response_id!r} not found.", field="response_id", reason="RESPONSE_NOT_FOUND")
