"""Answers with many log-probabilities: complete, and encoded in a side thread."""

import sys
import threading

import msgspec
import pytest

from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.sse.rendering import json_event, json_response, rendered
from tetrad.frontend.net.side_thread import in_side_thread

NUM_TOKENS = 128  # of the fake engine's vocabulary that have log-probabilities


@pytest.mark.parametrize(("num_logprobs", "in_loop"), [(0, True), (100, True), (1_000_000, False)])
async def test_the_event_loop_renders_small_answers_only(num_logprobs, in_loop):
    thread = await rendered(num_logprobs, threading.current_thread)

    assert (thread is threading.main_thread()) is in_loop


async def test_one_thread_renders_all_large_answers():
    threads = {await rendered(1_000_000, threading.current_thread) for _ in range(3)}

    assert len(threads) == 1


async def test_a_large_answer_that_cannot_be_rendered_raises_in_its_request():
    with pytest.raises(ZeroDivisionError):
        await rendered(1_000_000, lambda: 1 // 0)


async def test_minus_one_shows_every_candidate_of_a_chat(serve_frontend):
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "logprobs": True, "top_logprobs": -1}
    async with serve_frontend(max_logprobs=-1) as frontend:
        response = await frontend.http.post("/v1/chat/completions", json=body)

    [position] = response.json()["choices"][0]["logprobs"]["content"]
    assert len(position["top_logprobs"]) == NUM_TOKENS


async def sent(response) -> list[dict]:
    """Return the messages of a response."""
    messages: list[dict] = []

    async def send(message):
        messages.append(message)

    await response({"type": "http"}, None, send)
    return messages


async def test_large_lists_and_mappings_are_sent_in_pieces():
    parts = LargeParts()
    tops = parts.mapping_of({f"token {i}": -i / 2 for i in range(50_000)})
    answer = {"id": "x", "few": parts.list_of([1, 2]), "positions": parts.list_of([tops, None], 50_000), "after": "y"}

    [start, *bodies] = await sent(await json_response(answer, parts, 100_000))

    pieces = [each["body"] for each in bodies]
    whole = b"".join(pieces)
    expected = {f"token {i}": -i / 2 for i in range(50_000)}
    assert msgspec.json.decode(whole) == {"id": "x", "few": [1, 2], "positions": [expected, None], "after": "y"}
    assert dict(start["headers"])[b"content-length"] == str(len(whole)).encode()
    assert max(map(len, pieces)) < 128 << 10
    assert [each["more_body"] for each in bodies] == [True] * (len(bodies) - 1) + [False]


async def test_the_parts_of_an_event_are_not_in_the_next_one():
    parts = LargeParts()
    events = [await json_event(parts.list_of([number] * 3000), parts, 3000) for number in (1, 2)]

    assert events == [b"data: [%b]\n\n" % b",".join([b"%d" % number] * 3000) for number in (1, 2)]


async def test_the_side_thread_gives_the_lock_back_early_while_it_computes():
    usual = sys.getswitchinterval()

    meanwhile = await in_side_thread(sys.getswitchinterval)

    assert meanwhile < usual
    assert sys.getswitchinterval() == usual


async def test_a_prompts_log_probabilities_are_whole(serve_frontend):
    """Four positions of 128 candidates: together they are a large part. Echoed, they are shown twice."""
    body = {"prompt": "abcde", "max_tokens": 1, "prompt_logprobs": -1, "logprobs": -1, "echo": True}
    async with serve_frontend(max_logprobs=-1) as frontend:
        response = await frontend.http.post("/v1/completions", json=body)

    [choice] = response.json()["choices"]
    assert [position and len(position) for position in choice["prompt_logprobs"]] == [None, *[NUM_TOKENS] * 4]
    assert [position and len(position) for position in choice["logprobs"]["top_logprobs"]] == [None, *[NUM_TOKENS] * 5]
