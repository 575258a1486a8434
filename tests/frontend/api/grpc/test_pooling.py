"""Embed of the public gRPC API: errors name the field of the request, and large answers are made in slices."""

import grpc
import pytest

from tests.frontend.fakes.pooling_engine import PoolingEngine
from tetrad.frontend.api.grpc import pooling
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import inference_pb2, inference_pb2_grpc


@pytest.fixture
def make_engine():
    return PoolingEngine


@pytest.fixture
async def stub(frontend):
    async with open_channel(frontend.grpc_address) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"texts": ["a", ""]}, "texts"),
        ({"texts": ["x" * 600]}, "texts"),
        ({"prompts": [inference_pb2.TokenIdList()]}, "prompts"),
        ({"prompts": [inference_pb2.TokenIdList(ids=[4000])]}, "prompts"),
        ({"texts": ["a"], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"texts": ["a"], "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"texts": ["a"], "dimensions": 3}, "dimensions"),
    ],
)
async def test_an_error_names_the_field(stub, fields, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Embed(inference_pb2.EmbedRequest(**fields))

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).field == field


async def test_an_error_of_score_names_the_limit(stub):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Score(inference_pb2.ScoreRequest(queries=["a"], documents=["b"], max_tokens_per_document=600))

    assert from_rpc_error(caught.value).field == "max_tokens_per_document"


async def test_other_calls_run_between_two_embeddings_of_an_answer(stub, monkeypatch):
    checks = []

    class Slice:
        async def check(self):
            checks.append(self)

    monkeypatch.setattr(pooling, "TimeSlice", Slice)

    answer = await stub.Embed(inference_pb2.EmbedRequest(texts=["hello", "again"]))

    assert [bytes(map(int, each.values)) for each in answer.embeddings] == [b"hello", b"again"]
    assert len(checks) == 2
