"""Pooling requests take the name of an adapter as `model`, over every API."""

import pytest

from tests.frontend.api.test_adapters import WITH_SQL, WITHOUT, sent_to
from tests.frontend.fakes.pooling_engine import PoolingEngine
from tetrad.v1 import inference_pb2, inference_pb2_grpc

POSTS = {
    "/v1/embeddings": {"input": ["hello", "again"]},
    "/v2/embed": {"texts": ["hello", "again"]},
    "/pooling": {"input": ["hello", "again"]},
    "/score": {"text_1": "hello", "text_2": "again"},
    "/api/embed": {"input": ["hello", "again"]},
}


@pytest.fixture
def make_engine():
    return PoolingEngine


@pytest.mark.parametrize("path", POSTS)
async def test_http_requests_carry_the_adapter_that_model_names(path, adapted, engine):
    answers = [await adapted.http.post(path, json=POSTS[path] | {"model": model}) for model in ("sql", "fake")]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert sent_to(engine) == [WITH_SQL] * 2 + [WITHOUT] * 2


async def test_grpc_calls_carry_the_adapter_that_model_names(channel, engine):
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    for model in ("sql", "fake"):
        await stub.Embed(inference_pb2.EmbedRequest(model=model, texts=["hello"]))

    assert sent_to(engine) == [WITH_SQL, WITHOUT]
