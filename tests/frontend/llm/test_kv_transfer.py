"""The KV transfer of a program's request: in SamplingParams.extra_args, as vLLM's programs give it."""

import pytest

from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest, UnsupportedArgument
from tetrad.v1 import types_pb2

DECODE = {"kv_transfer_params": {"do_remote_decode": True}}


@pytest.fixture
async def llm(engine, connect):
    engine.kv_role = types_pb2.KV_ROLE_BOTH
    return await connect()


async def outputs_of(llm, extra_args, **options):
    params = SamplingParams(max_tokens=1, extra_args=extra_args)
    return [output async for output in llm.generate("x" * 40, params, "r", **options)], params


async def test_the_last_output_has_kv_transfer_params(llm, engine):
    outputs, params = await outputs_of(llm, DECODE)

    assert outputs[-1].kv_transfer_params["remote_engine_id"] == "engine-0"
    assert engine.requests[0].kv_transfer.do_remote_decode
    assert not engine.requests[0].sampling_params.HasField("extra_args")
    assert params.extra_args == DECODE


async def test_other_extra_args_still_need_a_logits_processor(llm, engine):
    with pytest.raises(UnsupportedArgument, match="is not supported: the server has no custom logits"):
        await outputs_of(llm, DECODE | {"a": 1})

    assert not engine.requests


async def test_an_engine_core_s_refusal_names_the_caller_s_object(llm, engine):
    engine.reject = lambda _: InvalidRequest("kv_transfer names the worker 'x'; kv-peers allows none.", field="kv_transfer")

    with pytest.raises(InvalidRequest, match="names the worker 'x'") as caught:
        await outputs_of(llm, DECODE)

    assert caught.value.field == "kv_transfer_params"


async def test_a_transfer_is_given_once(llm):
    with pytest.raises(InvalidRequest, match="kv_transfer_params is given twice"):
        await outputs_of(llm, DECODE, kv_transfer=KvTransfer(do_remote_prefill=True))
