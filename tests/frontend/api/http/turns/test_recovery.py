"""Turns during the loss of an engine core or a tokenizer: reasoning, tool calls and usage are as without it."""

import asyncio
import json
import re

import pytest

from tests.frontend.turns import FORMATS, TEXTS, WEATHER, writes

HI = [{"role": "user", "content": "hi there, what is the weather"}]
FUNCTIONS = [{"name": "get_weather", "parameters": WEATHER}, {"name": "get_time", "parameters": {"type": "object"}}]
BODIES = {
    "/v1/chat/completions": {
        "messages": HI,
        "tools": [{"type": "function", "function": each} for each in FUNCTIONS],
        "stream_options": {"include_usage": True},
    },
    "/v1/messages": {
        "messages": HI,
        "max_tokens": 400,
        "tools": [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS],
    },
    "/v1/responses": {"input": HI[0]["content"], "tools": [{"type": "function"} | each for each in FUNCTIONS]},
}
# What is another one each time.
IDS = re.compile(r'"(id|item_id|call_id|response_id|request_id|created|created_at|completed_at)": ?("[^"]*"|[0-9.]+)')


async def answer(http, path, body):
    """Return the events of a stream, without what no two answers have in common; texts are joined, however they were cut."""
    async with http.stream("POST", path, json=body | {"model": "fake", "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        lines = [line[6:] async for line in response.aiter_lines() if line.startswith("data: {")]
    return [json.loads(IDS.sub('"\\1": null', line)) for line in lines]


async def middle(engine, number):
    await engine.allow(number)
    await engine.until(lambda: engine._permits == 0)


@pytest.mark.parametrize("lost", ["engine", "tokenizer"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("num_steps", [2, 13, 26], ids=["reasoning", "content", "call"])
async def test_a_turn_goes_on_behind_a_loss(serve_frontend, engine, tokenizer, lost, path, num_steps):
    writes(engine, TEXTS["all"])
    engine.tokens_per_step = 5
    async with serve_frontend(**FORMATS) as frontend:
        engine.pause()
        answers = []
        for disturbed in (False, True):
            task = asyncio.create_task(answer(frontend.http, path, BODIES[path]))
            await engine.until(lambda: engine.running)
            await middle(engine, num_steps)
            if disturbed:
                service = {"engine": engine, "tokenizer": tokenizer}[lost]
                await service.kill()
                await service.start()
            await engine.allow(None)
            events = await task
            engine.pause()
            answers.append(events)

    plain, disturbed = answers
    assert merged(disturbed) == merged(plain)
    assert "get_time" in json.dumps(disturbed)
    assert "usage" in json.dumps(disturbed[-2:])


def merged(events):
    """Return the strings and numbers of events by their places, with those of equal places joined: chunks are cut anywhere."""
    places = {}
    for event in events:
        _collect(event, "", places)
    return {
        place: "".join(values) if ("delta" in place or "arguments" in place) and isinstance(values[-1], str) else values[-1]
        for place, values in places.items()
    }


def _collect(value, place, places):
    if isinstance(value, dict):
        # Only the first chunk of a tool call names its type; all name its index.
        name = value["index"] if "index" in value else f"{value.get('type', '')}{value.get('output_index', '')}"
        for key, each in value.items():
            if key != "sequence_number":
                _collect(each, f"{place}.{name}.{key}", places)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            is_named = isinstance(each, dict) and "index" in each  # else its place in the list is its name
            _collect(each, place if is_named else f"{place}[{number}]", places)
    elif value is not None and not (place.endswith((".type", ".role", ".index", ".name")) and "delta" in place):
        places.setdefault(place, []).append(value)
