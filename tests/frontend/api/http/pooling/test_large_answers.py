"""Large answers of pooling models: while one is made, the event loop serves other requests."""

import asyncio
from array import array
from types import SimpleNamespace

import pytest

from tetrad.frontend.api.http.pooling import batch
from tetrad.frontend.llm.scoring import score_pairs
from tetrad.frontend.request.pooling import PooledTensor, PoolingFacts, PoolingRequestOutput


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["hello"] * 5}),
        ("/v2/embed", {"texts": ["hello"] * 5, "embedding_types": ["float"]}),
        ("/v2/embed", {"texts": ["hello"] * 5, "embedding_types": ["base64"]}),
        ("/api/embed", {"model": "fake", "input": ["hello"] * 5}),
    ],
)
async def test_embeddings_are_encoded_in_slices(http, monkeypatch, path, body):
    pauses = []

    async def pause(delay):
        pauses.append(delay)

    monkeypatch.setattr(batch, "_VALUES_AT_ONCE", 9)  # two embeddings have ten values
    monkeypatch.setattr(batch, "asyncio", SimpleNamespace(sleep=pause))

    answer = await http.post(path, json=body)

    assert answer.status_code == 200
    assert pauses == [0, 0]


async def test_cosines_are_computed_outside_of_the_event_loop():
    turns = []

    async def run(prompts, params):
        asyncio.get_running_loop().call_soon(turns.append, "another request's")
        return [PoolingRequestOutput("r", PooledTensor((1,), array("f", [len(text)])), [1]) for text in prompts]

    llm = SimpleNamespace(pooling=PoolingFacts(("embed",), 1, False, (), (), 0, False))

    scores = await score_pairs(llm, [("a", "bb"), ("a", "ccc")], run)

    assert scores.values == [2, 3]
    assert turns == ["another request's"]
