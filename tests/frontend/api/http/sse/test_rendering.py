"""Answers with many log-probabilities: complete, and encoded in a side thread."""

import threading

import pytest

from tetrad.frontend.api.http.sse.rendering import rendered

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
