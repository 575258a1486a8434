"""A model that transcribes refuses chats, completions and pooling, before a request reaches an engine core."""

import pytest

HELLO = [{"role": "user", "content": "Hello"}]
USE = "it transcribes. Use /v1/audio/transcriptions."
CHATS = f"The model does not support Chat Completions API: {USE}"
COMPLETIONS = f"The model does not support Completions API, and a prompt needs exactly 1 audio: {USE}"


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/chat/completions", {"messages": HELLO}, CHATS),
        ("/v1/chat/completions", {"messages": HELLO, "chat_template": "{{ messages }}"}, CHATS),
        ("/v1/responses", {"input": "Hello"}, CHATS),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 4}, CHATS),
        ("/v1/completions", {"prompt": "Hello"}, COMPLETIONS),
        ("/v1/completions", {"prompt": [1, 2, 3]}, COMPLETIONS),
        ("/api/generate", {"prompt": "Hello", "raw": True}, COMPLETIONS),
    ],
)
async def test_a_prompt_without_audio_is_refused_with_the_endpoint_to_use(hearing, engine, path, body, text):
    answer = await hearing.http.post(path, json={"model": "fake", **body})

    assert answer.status_code == 501, answer.text
    error = answer.json()["error"]
    assert (error if isinstance(error, str) else error["message"]) == text
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/embeddings", {"input": "a"}), ("/pooling", {"input": "a"}), ("/score", {"text_1": "a", "text_2": "b"})],
)
async def test_pooling_is_refused_with_the_endpoint_to_use(hearing, path, body):
    answer = await hearing.http.post(path, json={"model": "fake", **body})

    assert answer.status_code in (400, 501), answer.text
    assert USE in answer.json()["error"]["message"]


async def test_its_capabilities_for_ollama_are_none(hearing):
    shown = await hearing.http.post("/api/show", json={"model": "fake"})

    assert shown.json()["capabilities"] == []
