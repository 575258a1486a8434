"""Responses to store, and which of them a store has."""

from tetrad.frontend.api.http.responses.store import StoredResponse
from tetrad.services.errors import NotFound


def item(text):
    return {"id": text, "type": "message", "content": text}


def stored(name, previous=None, status="completed"):
    response = {"id": name, "previous_response_id": previous, "status": status, "error": None, "output": [item(f"{name} out")]}
    return StoredResponse(response, [item(f"{name} in")])


async def kept(store, *names):
    """Return those of the names that are kept."""
    found = []
    for name in names:
        try:
            found.append((await store.get(name)).response["id"])
        except NotFound:
            continue
    return found
