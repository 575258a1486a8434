"""Ids that only the model's padded vocabulary has: a model may generate them, so they can be read; they have no text."""

import pytest

from tests.frontend.fakes import VOCAB_SIZE

PADDED, TOO_LARGE = VOCAB_SIZE + 3, 512
IDS = [104, PADDED, 105]


@pytest.fixture
async def http(serve_frontend, engine):
    engine.vocab_size = TOO_LARGE
    async with serve_frontend() as frontend:
        yield frontend.http


async def test_they_are_detokenized_to_no_text(http):
    answer = await http.post("/detokenize", json={"tokens": IDS})

    assert answer.json() == {"prompt": "hi"}


async def test_they_are_derendered_to_no_text(http):
    content = [{"token_id": i, "token": "", "logprob": -1.0, "top_logprobs": []} for i in IDS]
    choice = {"index": 0, "token_ids": IDS, "logprobs": {"content": content}}
    body = {"generate_responses": [{"request_id": "r", "choices": [choice]}], "completion_request": {"prompt": "a"}}

    answer = await http.post("/v1/completions/derender", json=body)

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == "hi"


async def test_they_are_derendered_in_chunks_to_no_text(http):
    chunk = {"request_id": "r", "choices": [{"index": 0, "token_ids": IDS}]}

    answer = await http.post("/v1/completions/derender", json={"stream": True, "generate_chunk": chunk})

    assert answer.status_code == 200, answer.text
    assert answer.json()["chunk"]["choices"][0]["text"] == "hi"


async def test_an_id_that_the_model_does_not_have_is_refused(http):
    answer = await http.post("/detokenize", json={"tokens": [TOO_LARGE]})

    assert answer.status_code == 400
    assert f"Token id {TOO_LARGE} is out of vocabulary. Vocabulary size: {TOO_LARGE}" in answer.json()["error"]["message"]
