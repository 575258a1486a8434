"""Requests that need only the tokenizer end when their client disconnects, too."""

import asyncio

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ANSWER = {"request_id": "r", "choices": [{"index": 0, "token_ids": [104]}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "hi"}),
        ("/tokenize", CHAT),
        ("/v1/completions/render", {"prompt": "hi"}),
        ("/v1/chat/completions/render", CHAT),
        ("/v1/messages/render", CHAT | {"max_tokens": 5, "model": "fake"}),
        ("/v1/messages/count_tokens", CHAT | {"model": "fake"}),
        ("/v1/responses/render", {"input": "hi"}),
        ("/v1/chat/completions/derender", {"generate_response": ANSWER, "chat_request": CHAT}),
    ],
)
async def test_a_client_that_leaves_gives_its_place_to_the_next(serve_frontend, tokenizer, path, body):
    """The tokenizer does not answer, so a request that is admitted ends at its deadline; one that is not is a 429."""
    async with serve_frontend(max_num_requests=1) as frontend:
        tokenizer.hung.clear()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{frontend.port}") as client:
            leaving = asyncio.create_task(client.post(path, json=body))
            while not (tokenizer.num_calls or tokenizer.rendered):  # noqa: ASYNC110 - the fake has no event of its own
                await asyncio.sleep(0.005)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

        async with asyncio.timeout(8):
            status = 429
            while status == 429:
                headers = {"X-Request-Timeout": "0.05"}
                status = (await frontend.http.post("/tokenize", json={"prompt": "hi"}, headers=headers)).status_code
        tokenizer.hung.set()

    assert status == 504
