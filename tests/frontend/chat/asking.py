"""Requests chat completions over HTTP: whole answers, streams, and the sum of a stream's chunks."""

from tests.frontend.api.http.event_streams import events

MESSAGES = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("add", "sub")]
NAMED = {"type": "function", "function": {"name": "add"}}
# What a model writes to call the first of them.
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def ask(frontend, **body):
    response = await frontend.http.post("/v1/chat/completions", json={"messages": MESSAGES, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def stream(frontend, **body):
    """Return the chunks of a stream."""
    body = {"messages": MESSAGES, "stream_options": {"include_usage": True}, **body}
    return await events(frontend.http, "/v1/chat/completions", **body)


def added_up(chunks, index=0):
    """Return (message, finish reason, logprobs, token ids) that the chunks of a choice add up to."""
    message = {"content": None, "reasoning": None, "calls": []}
    reasons, logprobs, ids = [], [], []
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    for choice in choices[1:]:
        delta = choice["delta"]
        assert "role" not in delta
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for name in ("content", "reasoning"):
            if name in delta:
                message[name] = (message[name] or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["type"] == "function"
                assert call["index"] == len(message["calls"])
                message["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            message["calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        logprobs += choice["logprobs"]["content"] if choice["logprobs"] else []
        ids += choice.get("token_ids", [])
    assert len(reasons) == 1
    return message, reasons[0], logprobs, ids
