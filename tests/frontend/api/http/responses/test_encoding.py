"""Events and responses with many log-probabilities have the same JSON as small ones."""

import json

import pytest

from tetrad.frontend.api.http.responses.encoding import encoded_events, pieces_of, response_of
from tetrad.frontend.api.http.schemas.objects import TokenLogprob, TopLogprob, encode
from tetrad.frontend.api.http.sse.named_events import named_events

TOPS = [TopLogprob(f"t{i}", -i / 4, [i]) for i in range(20)]


def text_part(num_tokens):
    logprobs = [TokenLogprob(f"token {i}", -0.5, [i % 256], TOPS) for i in range(num_tokens)]
    return {"type": "output_text", "text": "a", "annotations": [], "logprobs": logprobs}


def response(num_tokens):
    message = {"type": "message", "role": "assistant", "content": [text_part(num_tokens), text_part(1)]}
    return {"id": "resp_1", "output": [{"type": "function_call", "arguments": "{}"}, message], "metadata": {"logprobs": "mine"}}


@pytest.mark.parametrize("num_tokens", [0, 1, 1000])
async def test_events_are_encoded_alike_whatever_their_size(num_tokens):
    [item] = response(num_tokens)["output"][1:]
    events = [
        {"type": "response.output_text.done", **text_part(num_tokens)},
        {"type": "response.content_part.done", "part": text_part(num_tokens)},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": response(num_tokens)},
    ]

    assert await encoded_events(events) == named_events(events)


@pytest.mark.parametrize("num_tokens", [0, 1, 1000])
async def test_a_response_is_encoded_alike_whatever_its_size(num_tokens):
    bodies = []

    async def send(message):
        bodies.append(message.get("body", b""))

    await (await response_of(response(num_tokens)))({"type": "http"}, None, send)

    assert b"".join(bodies) == b"".join(pieces_of(response(num_tokens))) == encode(response(num_tokens))
    assert json.loads(b"".join(bodies))["metadata"] == {"logprobs": "mine"}
