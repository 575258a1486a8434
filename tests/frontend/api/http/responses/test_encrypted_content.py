"""Reasoning for clients that store no responses, and keep its encrypted content alone."""

import pytest

from tests.frontend.api.http.responses.client import TOOLS, client_of
from tests.frontend.api.http.responses.test_items import conversation
from tests.frontend.turns import FORMATS, TEXTS, writes
from tetrad.frontend.api.http.responses.encrypted_content import encrypted_content_of

INCLUDE = ["reasoning.encrypted_content"]


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS) as running:
        yield running


@pytest.fixture
async def client(frontend):
    async with client_of(frontend) as opened:
        yield opened


def messages(**reasoning):
    return conversation([{"role": "user", "content": "hi"}, {"type": "reasoning", "summary": [], **reasoning}]).messages


async def test_reasoning_that_is_included_can_be_sent_back_without_its_content(client, engine):
    writes(engine, TEXTS["all"])
    fields = {"model": "fake", "input": "Weather?", "tools": TOOLS, "store": False, "include": INCLUDE}

    whole = (await client.responses.create(**fields)).output[0]
    events = [event async for event in await client.responses.create(**fields, stream=True)]
    added, done = [event.item for event in events if event.type.startswith("response.output_item")][:2]

    assert added.encrypted_content is None
    assert done.encrypted_content == whole.encrypted_content
    [_, turn] = messages(encrypted_content=whole.encrypted_content)
    assert turn["reasoning_content"] == "I need the weather."


async def test_reasoning_has_no_encrypted_content_that_was_not_asked_for(client, engine):
    writes(engine, TEXTS["reasoning"])

    response = await client.responses.create(model="fake", input="hi")

    assert response.output[0].encrypted_content is None


@pytest.mark.parametrize("text", ["", "héllo 👩‍👩‍👧"])
def test_any_text_comes_back(text):
    assert messages(encrypted_content=encrypted_content_of(text))[1]["reasoning_content"] == text


def test_content_goes_before_encrypted_content():
    content = [{"type": "reasoning_text", "text": "a"}]

    [_, turn] = messages(content=content, encrypted_content=encrypted_content_of("b"))

    assert turn["reasoning_content"] == "a"


@pytest.mark.parametrize("value", ["gAAAAABo", "tetrad-!", "tetrad-/w=="])
def test_what_another_server_made_is_left_out(value):
    summary = [{"type": "summary_text", "text": "s"}]

    assert messages(encrypted_content=value)[1]["reasoning_content"] == ""
    assert messages(encrypted_content=value, summary=summary)[1]["reasoning_content"] == "s"
