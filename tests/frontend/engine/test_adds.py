"""Packing of requests for an engine core: no message is larger than the engine core accepts, for fields of any size."""

import os
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tetrad.frontend.engine.client_outgoing import add_messages
from tetrad.frontend.engine.client_sequence import ActiveSequence, SharedParams
from tetrad.frontend.engine.sent_media import SentMedia
from tetrad.services.message_size import BATCH_BYTES, DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import engine_core_pb2, types_pb2

LIMITS = (1 << 20, DEFAULT_MAX_MESSAGE_BYTES)
# Sizes around the limits of the packing.
SIZES = st.sampled_from((0, 100, 42_000, 500_000, BATCH_BYTES - 100, BATCH_BYTES, 1_030_000, 4 << 20, 20 << 20, 33_000_000))


def params_of(size: int, field: str) -> types_pb2.SamplingParams:
    """Sampling parameters of about this size, all of it in one field."""
    match field:
        case "schema":
            return types_pb2.SamplingParams(structured_outputs=types_pb2.StructuredOutputs(json_schema="x" * size))
        case "logit_bias":
            return types_pb2.SamplingParams(logit_bias=dict.fromkeys(range(min(size // 11, 100000)), 1.0))
        case "allowed_token_ids":
            return types_pb2.SamplingParams(allowed_token_ids=[70_000] * (size // 3))
        case _:
            return types_pb2.SamplingParams(bad_words_token_ids=[types_pb2.TokenIds(ids=bytes(size // 4 * 4))])


def requests_of(params: types_pb2.SamplingParams, n: int, *, prompt_bytes: int = 40, num_resumed: int = 0, salt: int = 0):
    """The n outputs of one request, `num_resumed` tokens into them."""
    shared, prompt = SharedParams(params, params.ByteSize()), bytes(prompt_bytes // 4 * 4)
    made = []
    for index in range(n):
        request = engine_core_pb2.EngineCoreRequest(request_id=f"{index}_{salt}", handle=2**32 - 1, seed=index - 2**63)
        size = request.ByteSize()
        deadline = SimpleNamespace(remaining_s=1e6)
        sequence = SimpleNamespace(
            request_id=request.request_id, output_token_ids=[1] * num_resumed, finished=False, deadline=deadline
        )
        if num_resumed:
            request.resumed, request.resumed_output_token_ids = True, pack_u32(sequence.output_token_ids)
        made.append(ActiveSequence(sequence, None, None, request, prompt, shared, size))
    return made


def encode(message):
    """Run the coroutine, which waits for nothing but its turn; an event loop for each message would take a minute."""
    coroutine = message.encode()
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value


@st.composite
def in_flight(draw):
    """Requests of several clients, each with n outputs; a few hundred megabytes at most."""
    fields = st.sampled_from(("schema", "logit_bias", "allowed_token_ids", "bad_words"))
    groups, room = [], 200_000_000
    for salt in range(draw(st.integers(1, 6))):
        size, prompt_bytes, num_resumed = draw(SIZES), draw(SIZES) // 16, draw(st.sampled_from((0, 10, 100_000)))
        n = min(draw(st.sampled_from((1, 2, 40, 1024))), max(1, room // (prompt_bytes + 4 * num_resumed + 200)))
        room -= n * (prompt_bytes + 4 * num_resumed)
        params = params_of(size, draw(fields))
        groups.append(requests_of(params, n, prompt_bytes=prompt_bytes, num_resumed=num_resumed, salt=salt))
    return [each for group in groups for each in group]


@given(requests=in_flight(), limit=st.sampled_from(LIMITS))
@settings(max_examples=12 if "TEST_FUZZ_EXAMPLES" in os.environ else 6)
def test_no_message_is_larger_than_the_engine_core_reads(requests, limit):
    fitting = [each for each in requests if each.num_bytes <= limit]

    messages = list(add_messages(fitting, SentMedia(), shares=True, most_bytes=limit))

    assert [each for message in messages for each in message.requests] == fitting
    for message in messages:
        encoded = encode(message)
        assert encoded.ByteSize() <= message.num_bytes <= limit
        if message.num_bytes > BATCH_BYTES:
            assert len({each.params for each in message.requests}) == 1, "whoever is not so large keeps away from it"


@given(requests=in_flight())
@settings(max_examples=3)
def test_an_engine_core_that_knows_no_shared_parameters_gets_messages_as_small(requests):
    fitting = [each for each in requests if each.num_bytes <= DEFAULT_MAX_MESSAGE_BYTES][:60]

    messages = list(add_messages(fitting, SentMedia(), shares=False, most_bytes=DEFAULT_MAX_MESSAGE_BYTES))

    assert [each for message in messages for each in message.requests] == fitting
    for message in messages:
        encoded = encode(message)
        assert encoded.ByteSize() <= DEFAULT_MAX_MESSAGE_BYTES
        assert not encoded.add.shared_sampling_params
        assert [each.sampling_params.seed for each in encoded.add.requests] == [each.message.seed for each in message.requests]


@pytest.mark.parametrize("size", [50_000, 4 << 20])
def test_a_thousand_outputs_of_one_request_carry_its_parameters_once(size):
    requests = requests_of(params_of(size, "logit_bias"), 1024)

    [message] = add_messages(requests, SentMedia(), shares=True, most_bytes=DEFAULT_MAX_MESSAGE_BYTES)

    add = encode(message).add
    assert list(add.shared_sampling_params) == [requests[0].params.message]
    assert {each.sampling_params_index for each in add.requests} == {0}
    assert [each.seed for each in add.requests] == [index - 2**63 for index in range(1024)]


def test_requests_that_differ_keep_their_own_parameters():
    requests = [each for bias in (1, 2) for each in requests_of(types_pb2.SamplingParams(logit_bias={5: bias}), 2, salt=bias)]

    [message] = add_messages(requests, SentMedia(), shares=True, most_bytes=DEFAULT_MAX_MESSAGE_BYTES)

    add = encode(message).add
    biases = [add.shared_sampling_params[each.sampling_params_index].logit_bias[5] for each in add.requests]
    assert biases == [1, 1, 2, 2]
