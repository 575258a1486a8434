"""/v2/embed: the limit of an input's tokens."""

import pytest

from tests.frontend.fakes.pooling_engine import PoolingEngine
from tetrad.v1 import types_pb2


class LimitedEngine(PoolingEngine):
    """Serves an embedding model whose inputs have other limits than its context of 512 tokens."""

    def __init__(self, path, **limits):
        super().__init__(path)
        self._limits = limits

    def _info(self):
        info = super()._info()
        info.pooling.CopyFrom(types_pb2.PoolingInfo(tasks=["embed"], embedding_size=5, **self._limits))
        return info


@pytest.fixture
async def engine(sockets, request):
    fake = LimitedEngine(sockets / "e", **request.param)
    await fake.start()
    yield fake
    await fake.kill()


@pytest.mark.parametrize(
    ("engine", "max_tokens", "kept"),
    [
        ({"max_embed_len": 64}, 100, 64),
        ({"chunked_processing": True, "max_embed_len": 900}, 600, 600),
        ({}, 600, 512),
        ({"max_embed_len": 64}, 10, 10),
    ],
    indirect=["engine"],
)
async def test_an_input_is_cut_to_max_tokens_or_to_the_longest_input(frontend, engine, max_tokens, kept):
    body = {"texts": ["x" * 1000], "max_tokens": max_tokens}

    answer = (await frontend.http.post("/v2/embed", json=body)).json()

    assert answer["meta"]["billed_units"]["input_tokens"] == kept
