"""kv_transfer_params over gRPC: in the public API and in those of gateways."""

import json

import grpc
import pytest
from google.protobuf import json_format
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from tests.frontend.api.gateways.requests import vllm_engine_request
from tests.frontend.fakes.engine import LEASE_ID
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tetrad.vllm_api import inference_pb2 as vllm_pb2
from tetrad.vllm_api import inference_pb2_grpc as vllm_pb2_grpc

DECODE = json.dumps({"do_remote_decode": True, "do_remote_prefill": False})
PROMPT = "a prompt of more than two blocks of tokens"
ONE_TOKEN = types_pb2.SamplingParams(max_tokens=1)


@pytest.fixture
async def channel(engine, serve_frontend):
    engine.kv_role = types_pb2.KV_ROLE_BOTH
    async with serve_frontend(listen="127.0.0.1:0") as frontend, open_channel(frontend.grpc_address) as opened:
        yield opened


@pytest.fixture
def stub(channel):
    return inference_pb2_grpc.InferenceServiceStub(channel)


async def test_generate_and_chat_return_the_object_that_a_second_call_gives_back(stub, engine):
    message = inference_pb2.ChatMessage(role="user", content=PROMPT)
    calls = {
        stub.Generate: inference_pb2.GenerateRequest(text=PROMPT, sampling_params=ONE_TOKEN),
        stub.Chat: inference_pb2.ChatRequest(messages=[message], sampling_params=ONE_TOKEN),
    }
    for call, request in calls.items():
        request.kv_transfer_params_json = DECODE
        *_, last = [answer async for answer in call(request)]
        request.kv_transfer_params_json = last.kv_transfer_params_json
        *_, again = [answer async for answer in call(request)]

        assert json.loads(last.kv_transfer_params_json)["lease_id"] == str(LEASE_ID)
        assert not again.kv_transfer_params_json
        sent = engine.requests[-1].kv_transfer
        assert (sent.do_remote_prefill, sent.lease_id, sent.remote_engine_id) == (True, LEASE_ID, "engine-0")
        assert sent.remote_request_id == engine.requests[-2].request_id


@pytest.mark.parametrize(
    ("text", "field"),
    [("{", "kv_transfer_params_json"), ("[]", "kv_transfer_params"), ('{"remote_port": -1}', "kv_transfer_params")],
)
async def test_a_wrong_object_is_an_invalid_argument(stub, engine, text, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [_ async for _ in stub.Generate(inference_pb2.GenerateRequest(text="hi", kv_transfer_params_json=text))]

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).field == field
    assert not engine.requests


async def test_smg_gives_the_json_of_the_first_answer_to_the_second_engine(channel, engine):
    smg = vllm_engine_pb2_grpc.VllmEngineStub(channel)
    first = vllm_engine_request(ids=list(PROMPT.encode()), stream=False, kv_transfer_params_json=DECODE)
    [answer] = [each async for each in smg.Generate(first)]
    found = answer.complete.kv_transfer_params_json

    [_] = [each async for each in smg.Generate(vllm_engine_request(stream=False, kv_transfer_params_json=found))]

    assert engine.requests[-1].kv_transfer.lease_id == LEASE_ID


async def test_smg_s_object_of_another_connector_is_refused(channel):
    request = vllm_engine_request(kv_transfer_params=vllm_engine_pb2.KvTransferParams(remote_host="h", remote_port=1))

    with pytest.raises(grpc.aio.AioRpcError, match="kv_transfer_params is not supported"):
        [_ async for _ in vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(request)]


def vllm_request(**params):
    kv = vllm_pb2.KVCacheParameters()
    json_format.ParseDict(params, kv.kv_transfer_params)
    return vllm_pb2.GenerateRequest(text="hi", stopping=vllm_pb2.StoppingCriteria(max_new_tokens=2), kv=kv)


async def test_vllm_s_service_reads_a_struct_whose_numbers_are_floats(channel, engine):
    request = vllm_request(do_remote_prefill=True, remote_port=5600, remote_block_ids=[[1, 2]])

    await vllm_pb2_grpc.InferenceStub(channel).Generate(request)

    sent = engine.requests[0].kv_transfer
    assert (sent.remote_port, list(sent.remote_block_ids)) == (5600, [b"\1\0\0\0\2\0\0\0"])


async def test_vllm_s_service_has_no_field_for_the_blocks_that_are_kept(channel, engine):
    with pytest.raises(grpc.aio.AioRpcError, match="do_remote_decode is not supported: an answer has no field"):
        await vllm_pb2_grpc.InferenceStub(channel).Generate(vllm_request(do_remote_decode=True))

    assert not engine.requests
