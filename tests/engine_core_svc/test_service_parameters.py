"""A running engine core refuses wrong parameters, and reads parameters that several requests of a message share."""

import pytest
from google.protobuf.struct_pb2 import Struct, Value

from tests.engine_core_svc.fake_worker import MAX_LEN, VOCAB_SIZE
from tests.engine_core_svc.service_fakes import Stack
from tetrad.engine_core_svc.engine import admission
from tetrad.engine_core_svc.engine.submission_wire import SharedSampling, decode_submission
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2

STRUCT = Struct(fields={"a": Value(number_value=1)})


@pytest.mark.parametrize(
    ("prompt", "fields", "text"),
    [
        ([], {}, "cannot be empty"),
        ([VOCAB_SIZE], {}, f"Token id {VOCAB_SIZE} is out of vocabulary. Vocabulary size: {VOCAB_SIZE}"),
        ([1] * MAX_LEN, {}, f"^This model's maximum context length is {MAX_LEN} tokens.*requested {MAX_LEN + 1} tokens"),
        ([1], {"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ([1], {"sampling_params": None}, "Exactly one of sampling_params, sampling_params_index, pooling_params"),
        ([1], {"lora_request": types_pb2.LoraRequest(name="a", id=1, path="/a")}, "start with enable_lora"),
        ([1], {"resumed_output_token_ids": pack_u32([1] * 4)}, "leave nothing to generate"),
        ([1], {"resumable": True}, "does not support resumable"),
        ([1], {"session_id": "s"}, "does not support session_id"),
        ([1], {"reasoning_ended": False}, "does not support reasoning_ended"),
        ([1], {"prompt_embeds": types_pb2.Tensor()}, "prompt_embeds must be a float32 tensor"),
        ([1], {"kv_transfer_params": STRUCT}, "does not support kv_transfer_params"),
        ([1], {"sampling_params": types_pb2.SamplingParams(extra_args=STRUCT)}, "does not support extra_args"),
        (
            [1],
            {"sampling_params": types_pb2.SamplingParams(speech_rules=types_pb2.SpeechRules())},
            "need a model with an encoder",
        ),
    ],
)
async def test_bad_requests_are_answered_alone(stack, prompt, fields, text):
    client = await stack.client()

    client.add(1, prompt, request_id="bad", **fields)
    client.add(2, [1], request_id="good")
    await client.until_finished(2)

    with pytest.raises(Exception, match=text):
        raise client.rejected["bad"]


def request_with(handle, **fields):
    return pb.EngineCoreRequest(request_id=f"r{handle}", handle=handle, prompt_token_ids=pack_u32([handle]), **fields)


async def test_extra_args_reach_a_worker_with_logits_processors(directory):
    async with Stack(directory) as stack:
        stack.worker.logits_processors = ["my_module:Mine"]
        client = await stack.client()

        client.add(1, [1], sampling_params=types_pb2.SamplingParams(max_tokens=2, extra_args=STRUCT))
        await client.until_finished(1)

        [new] = [new for step in stack.worker.seen for new in step.new_requests]
        assert new.sampling_params.extra_args == STRUCT
        assert list(client.ready.logits_processors) == ["my_module:Mine"]


async def test_requests_of_a_message_share_their_parameters_but_not_their_seeds(stack):
    client = await stack.client()
    params = types_pb2.SamplingParams(max_tokens=3, seed=5, logit_bias={7: 1.0})
    requests = [
        request_with(10, sampling_params_index=0),
        *(request_with(i, sampling_params_index=0, seed=i) for i in (20, 30)),
    ]
    requests.append(request_with(40, sampling_params=types_pb2.SamplingParams(max_tokens=2, seed=1)))

    add = pb.AddRequests(requests=requests, shared_sampling_params=[params])
    client.outbound.put_nowait(pb.SessionRequest(add=add))
    await client.until_finished(10, 20, 30, 40)

    assert {handle: len(tokens) for handle, tokens in client.tokens.items()} == {10: 3, 20: 3, 30: 3, 40: 2}
    sent = {new.request_id: new.sampling_params for step in stack.worker.seen for new in step.new_requests}
    assert {name: each.seed for name, each in sent.items()} == {"r10": 5, "r20": 20, "r30": 30, "r40": 1}
    assert {name: len(each.logit_bias) for name, each in sent.items()} == {"r10": 1, "r20": 1, "r30": 1, "r40": 0}


async def test_requests_belong_together_if_their_session_and_number_are_the_same():
    accepting = admission.Admission(admission.AdmissionLimits(MAX_LEN, VOCAB_SIZE))
    params = types_pb2.SamplingParams(max_tokens=3)

    def call(session_key, **fields):
        message = request_with(1, sampling_params=params, **fields)
        return accepting.accept(decode_submission(message), session_key=session_key).call

    calls = [call(1, call_number=5), call(1, call_number=5), call(2, call_number=5), call(1, call_number=6), call(1), call(1)]

    assert calls[0] == calls[1]
    assert len(set(calls)) == 5


async def test_shared_parameters_are_one_object_and_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(admission, "check_sampling", lambda params, **_: checked.append(params))
    shared = SharedSampling([types_pb2.SamplingParams(max_tokens=3, logit_bias={7: 1.0})])
    accepting = admission.Admission(admission.AdmissionLimits(MAX_LEN, VOCAB_SIZE))

    messages = [request_with(handle, sampling_params_index=0) for handle in range(1, 9)]
    accepted = [accepting.accept(decode_submission(message, shared), session_key=1) for message in messages]

    assert len({id(request.payload.params) for request in accepted}) == 1
    assert len(checked) == 1


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sampling_params_index": 1}, "sampling_params_index is 1, but the message has 1 shared_sampling_params"),
        ({"sampling_params_index": 0, "sampling_params": types_pb2.SamplingParams()}, "Exactly one of sampling_params"),
    ],
)
async def test_a_request_without_parameters_of_its_own_is_answered_alone(stack, fields, text):
    client = await stack.client()
    requests = [request_with(1, **fields), request_with(2, sampling_params_index=0)]

    add = pb.AddRequests(requests=requests, shared_sampling_params=[types_pb2.SamplingParams(max_tokens=3)])
    client.outbound.put_nowait(pb.SessionRequest(add=add))
    await client.until_finished(2)

    with pytest.raises(Exception, match=text):
        raise client.rejected["r1"]
