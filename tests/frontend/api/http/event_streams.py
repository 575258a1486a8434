"""Reads streams of events, as OpenAI's API sends them."""

import json


async def events(client, path, **body):
    """Return the parsed events of a stream; asserts that [DONE] is the last, once."""
    async with client.stream("POST", path, json={"stream": True, **body}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
