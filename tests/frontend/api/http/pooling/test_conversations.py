"""Conversations as inputs of pooling routes."""

import asyncio

import pytest

from tests.frontend.fakes import FakeTokenizer

CHATS = [[{"role": "user", "content": text}] for text in ("aaaaa", "bbbbb", "ccccc")]


class CountingTokenizer(FakeTokenizer):
    """Counts the conversations that it renders at the same time."""

    num_rendering = most_rendering = 0

    async def RenderChat(self, request, context):
        self.num_rendering += 1
        self.most_rendering = max(self.most_rendering, self.num_rendering)
        await asyncio.sleep(0)
        self.num_rendering -= 1
        return await super().RenderChat(request, context)


@pytest.fixture
async def tokenizer(sockets):
    fake = CountingTokenizer(sockets / "t")
    await fake.start()
    yield fake
    await fake.kill()


async def test_the_conversations_of_a_request_are_one_admission(serve_frontend):
    async with serve_frontend(max_num_requests=1) as running:
        answer = await running.http.post("/v1/embeddings", json={"messages": CHATS})

    assert answer.status_code == 200, answer.text
    assert [bytes(map(int, each["embedding"])).decode() for each in answer.json()["data"]] == ["aaaa\n", "bbbb\n", "cccc\n"]


async def test_conversations_with_a_template_are_rendered_one_after_the_other(http, tokenizer):
    """A tokenizer refuses more than 16 conversations with templates of their own at the same time."""
    answer = await http.post("/v1/embeddings", json={"messages": CHATS, "chat_template": "{{ messages[0].content }}"})

    assert answer.status_code == 200, answer.text
    assert tokenizer.most_rendering == 1


async def test_a_long_conversation_is_truncated(http):
    messages = [{"role": "user", "content": "x" * 20_000}]

    answer = await http.post("/v1/embeddings", json={"messages": messages, "truncate_prompt_tokens": 7})

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == 7


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ([{"role": "user", "content": "forbidden"}], "Input 1: Conversation roles must alternate"),
        ([{"role": "user", "content": "x" * 20_000}], "Input 1: This model's maximum context length"),
        ([], "Input 1: "),
    ],
)
@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
async def test_an_error_names_the_conversation(http, wrong, text, template):
    body = {"messages": [CHATS[0], wrong, CHATS[2]], "chat_template": template}

    error = (await http.post("/v1/embeddings", json=body)).json()["error"]

    assert error["message"].startswith(text)
