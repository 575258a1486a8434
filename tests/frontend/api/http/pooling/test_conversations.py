"""Conversations as inputs of pooling routes."""

from tests.frontend.llm.test_pooling_messages import engine  # noqa: F401 - the fixture

CHATS = [[{"role": "user", "content": text}] for text in ("aaaaa", "bbbbb", "ccccc")]


async def test_the_conversations_of_a_request_are_one_admission(serve_frontend):
    async with serve_frontend(max_num_requests=1) as running:
        answer = await running.http.post("/v1/embeddings", json={"messages": CHATS})

    assert answer.status_code == 200, answer.text
    assert [bytes(map(int, each["embedding"])).decode() for each in answer.json()["data"]] == ["aaaa\n", "bbbb\n", "cccc\n"]
