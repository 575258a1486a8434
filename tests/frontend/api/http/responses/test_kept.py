"""Stored responses, by OpenAI's client: read, listed, deleted, present after a restart; or not stored, on request."""

import openai
import pytest

from tests.frontend.api.http.responses.client import client_of
from tests.frontend.fakes import TEXT


@pytest.fixture
async def client(frontend):
    async with client_of(frontend) as opened:
        yield opened


async def test_a_stored_response_can_be_read_and_deleted(client):
    created = await client.responses.create(model="fake", input="hi", max_output_tokens=3)

    assert await client.responses.retrieve(created.id) == created
    await client.responses.delete(created.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(created.id)


async def test_a_streamed_response_is_stored_before_its_last_event(client):
    async with client.responses.stream(model="fake", input="hi", max_output_tokens=3) as stream:
        async for event in stream:
            if event.type == "response.incomplete":
                assert (await client.responses.retrieve(event.response.id)).output_text == TEXT[:3]
                return
    raise AssertionError("no last event")


async def test_a_response_survives_a_restart(serve_frontend, tmp_path):
    path = str(tmp_path / "responses.sqlite3")
    async with serve_frontend(responses_store=path) as first, client_of(first) as client:
        created = await client.responses.create(model="fake", input="hi", max_output_tokens=3)

    async with serve_frontend(responses_store=path) as second, client_of(second) as client:
        assert await client.responses.retrieve(created.id) == created


@pytest.mark.parametrize("unkept", [{"store": False}, None])
async def test_what_is_not_to_be_stored_is_not(serve_frontend, unkept):
    async with serve_frontend(responses_store=":memory:" if unkept else "none") as frontend, client_of(frontend) as client:
        created = await client.responses.create(model="fake", input="hi", max_output_tokens=3, **(unkept or {}))

        assert created.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(created.id)


async def test_input_items_are_listed_in_pages(client, http):
    first = await client.responses.create(model="fake", input="a", max_output_tokens=3)
    second = await client.responses.create(
        model="fake", input=[{"role": "user", "content": "b"}], previous_response_id=first.id, max_output_tokens=3
    )

    pages = [page async for page in (await client.responses.input_items.list(second.id, limit=2, order="asc")).iter_pages()]

    items = [item for page in pages for item in page.data]
    assert [(item.type, item.role) for item in items] == [("message", "user"), ("message", "assistant"), ("message", "user")]
    assert [item.content[0].text for item in items] == ["a", "The", "b"]
    assert [page.has_more for page in pages] == [True, False]
    latest = (await http.get(f"/v1/responses/{second.id}/input_items", params={"limit": 1})).json()
    assert (latest["data"][0]["id"], latest["has_more"]) == (items[-1].id, True)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_an_item_that_was_sent_again_is_listed_once(client, order):
    """Pages begin behind the item with an id: with a second one of that id, reading them all would never end."""
    first = await client.responses.create(model="fake", input="a", max_output_tokens=3)
    again = [first.output[0].model_dump(exclude_none=True), {"role": "user", "content": "b"}]
    second = await client.responses.create(model="fake", input=again, previous_response_id=first.id, max_output_tokens=3)

    texts = []
    async for item in await client.responses.input_items.list(second.id, limit=1, order=order):
        texts.append(item.content[0].text)
        assert len(texts) <= 4, "without end"

    assert texts == ["a", "The", "b"][:: 1 if order == "asc" else -1]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "order=up", "after=x"])
async def test_pages_that_cannot_be(client, http, query):
    created = await client.responses.create(model="fake", input="hi", max_output_tokens=1)

    response = await http.get(f"/v1/responses/{created.id}/input_items?{query}")

    assert response.status_code == (404 if query.startswith("after") else 400)
    assert response.json()["error"]["param"] == query.partition("=")[0]
