"""Embed of vllm.grpc.engine.VllmEngine: an Abort call ends it, and it answers with the embedding otherwise."""

import asyncio

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from tests.frontend.fakes.pooling_engine import PoolingEngine
from tetrad.services.rpc.status import from_rpc_error

PROMPT = vllm_engine_pb2.TokenizedInput(original_text="hello", input_ids=range(1, 7))


@pytest.fixture
def make_engine():
    return PoolingEngine


@pytest.fixture
def stub(channel):
    return vllm_engine_pb2_grpc.VllmEngineStub(channel)


async def test_an_embedding(stub):
    answer = await stub.Embed(vllm_engine_pb2.EmbedRequest(request_id="r", tokenized=PROMPT))

    assert (list(answer.embedding), answer.embedding_dim, answer.prompt_tokens) == ([2, 3, 4, 5, 6], 5, 6)


async def test_abort_ends_an_open_call(stub, engine):
    engine.num_expected = 2
    call = stub.Embed(vllm_engine_pb2.EmbedRequest(request_id="r", tokenized=PROMPT))
    waiting = asyncio.ensure_future(call)
    await engine.until(lambda: engine.requests)

    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["r"]))

    with pytest.raises(Exception, match="aborted") as caught:
        await waiting
    assert from_rpc_error(caught.value).reason == "ABORTED"
    await engine.until(lambda: engine.aborted)
