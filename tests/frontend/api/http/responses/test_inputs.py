"""Inputs of responses: the items of long conversations are validated beside the event loop, with the same result."""

import threading

import pytest

from tetrad.frontend.api.http.responses.bodies import InputItem, InputTokensRequest
from tetrad.frontend.api.http.responses.inputs import conversation_behind
from tetrad.frontend.api.http.responses.lookup import MANY_ITEMS
from tetrad.frontend.api.http.responses.store import NoStore, StoredResponse
from tetrad.services.errors import InvalidRequest

HEX = "0123456789abcdef" * 2


class Stored(NoStore):
    """Has one response with these items."""

    def __init__(self, items):
        self._stored = StoredResponse({"id": f"resp_{HEX}", "status": "completed", "output": []}, items)

    async def chain(self, response_id):
        return [self._stored]

    async def get(self, response_id):
        return self._stored


@pytest.fixture
def threads(monkeypatch):
    """The names of the threads that validate items."""
    names, validate = set(), InputItem.model_validate

    def recorded(item):
        names.add(threading.current_thread().name)
        return validate(item)

    monkeypatch.setattr(InputItem, "model_validate", recorded)
    return names


def items(number):
    return [{"id": f"item_{HEX}_{each}", "role": "user", "content": f"{each}"} for each in range(number)]


@pytest.mark.parametrize(("number", "thread"), [(3, "MainThread"), (MANY_ITEMS, "side_0")])
async def test_a_long_history_is_validated_beside_the_event_loop(number, thread, threads):
    body = InputTokensRequest(input="now", previous_response_id=f"resp_{HEX}")

    conversation, _ = await conversation_behind(None, Stored(items(number)), body)

    assert [each["content"] for each in conversation.messages] == [*map(str, range(number)), "now"]
    assert threads == {thread}


@pytest.mark.parametrize(("number", "thread"), [(3, "MainThread"), (MANY_ITEMS, "side_0")])
async def test_many_references_are_validated_beside_the_event_loop(number, thread, threads):
    stored = items(number)
    body = InputTokensRequest(input=[{"type": "item_reference", "id": each["id"]} for each in reversed(stored)])

    conversation, _ = await conversation_behind(None, Stored(stored), body)

    assert [each["content"] for each in conversation.messages] == [*map(str, reversed(range(number)))]
    assert threads == {thread}


async def test_an_error_in_a_long_history_is_the_error_of_the_request():
    body = InputTokensRequest(input=[{"role": "nobody", "content": "hi"}], previous_response_id=f"resp_{HEX}")

    with pytest.raises(InvalidRequest, match=r"^input\.0\.role must be one of"):
        await conversation_behind(None, Stored(items(MANY_ITEMS)), body)
