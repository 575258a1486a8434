"""Output messages of a session: none is larger than the frontend accepts, for steps of any size."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tetrad.engine_core_svc.api.wire import encode_message
from tetrad.engine_core_svc.core.plan import EngineCoreOutput, FinishReason, Logprobs, PrefillStats
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.engine_core_svc.sessions.outbox import Outbox, StepOutputs
from tetrad.services.message_size import BATCH_BYTES, DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import from_status

MIB = 1 << 20
WIDTHS = st.sampled_from((0, 1, 21, 5_000, 49_153, 62_400, 125_000, 4_100_000, 4_300_000))


def a_request(key: int, **fields) -> Request:
    given = {"request_id": f"r{key}" * 8, "token_ids": [1], "num_prompt_tokens": 1, "max_total_tokens": 100, "handle": key}
    return Request(key=key, **given | fields)


def logprobs(width: int, num_positions: int = 1) -> Logprobs | None:
    column = bytes(4 * width * num_positions)
    return Logprobs(column, column, bytes(4 * num_positions), num_positions, width) if width else None


def messages_of(step: StepOutputs, most_bytes: int):
    rest, messages = step, []
    while rest is not None:
        message, rest = encode_message(rest, 0, most_bytes)
        messages.append(message)
        assert len(messages) < 100_000, "no message takes the next output"
    return messages


@st.composite
def steps(draw):
    """Up to 1,024 requests: some plain, some with log-probabilities of all widths, some that end; 100 MB at most."""
    outputs, room = [], 100_000_000
    for _ in range(draw(st.integers(1, 5))):
        width, prompt_width, ends = draw(WIDTHS), draw(WIDTHS), draw(st.booleans())
        count = min(draw(st.sampled_from((1, 3, 130, 1024))), 1 + room // (8 * (width + prompt_width) + 100))
        room = max(0, room - count * (8 * (width + prompt_width) + 100))
        for key in range(len(outputs), len(outputs) + count):
            output = EngineCoreOutput(a_request(key), [key], logprobs=logprobs(width), prompt_logprobs=logprobs(prompt_width))
            output.finish_reason = FinishReason.LENGTH if ends else None
            output.prefill_stats = PrefillStats(5, 0) if prompt_width else None
            outputs.append(output)
    return StepOutputs(7, outputs, SchedulerStats(1, 2, 0.5, 3, 4, 5, 6))


@given(step=steps(), limit=st.sampled_from((MIB, DEFAULT_MAX_MESSAGE_BYTES)))
@settings(max_examples=8)
def test_no_message_is_larger_than_the_frontend_reads(step, limit):
    messages = messages_of(step, limit)

    assert max(message.ByteSize() for message in messages) <= limit
    assert {message.outputs.step_id for message in messages} == {7}
    assert [message.outputs.HasField("scheduler_stats") for message in messages] == [True] + [False] * (len(messages) - 1)
    plain = unpack_u32(messages[0].outputs.decode.handles)
    assert not any(message.outputs.HasField("decode") for message in messages[1:]), "tokens of a step come once"
    rich = [output.handle for message in messages for output in message.outputs.outputs]
    assert sorted(plain + rich) == [output.request.handle for output in step.outputs]


def test_messages_are_as_large_as_they_may_be_without_holding_others_up():
    step = StepOutputs(7, [EngineCoreOutput(a_request(key), [key], logprobs=logprobs(5_000)) for key in range(128)])

    sizes = [message.ByteSize() for message in messages_of(step, DEFAULT_MAX_MESSAGE_BYTES)]

    assert max(sizes) <= BATCH_BYTES + 100
    assert min(sizes[:-1]) > BATCH_BYTES - 41_000


def test_a_large_output_has_a_message_of_its_own():
    """Behind the tokens of others, and at once if there are none."""
    large = EngineCoreOutput(a_request(1), [1], logprobs=logprobs(BATCH_BYTES // 4))
    plain = EngineCoreOutput(a_request(2), [2])

    alone = messages_of(StepOutputs(7, [large]), DEFAULT_MAX_MESSAGE_BYTES)
    behind = messages_of(StepOutputs(7, [large, plain]), DEFAULT_MAX_MESSAGE_BYTES)

    assert [len(message.outputs.outputs) for message in alone] == [1]
    assert [len(message.outputs.outputs) for message in behind] == [0, 1]


def test_an_output_that_fits_no_message_fails_its_request_alone():
    outputs = [
        EngineCoreOutput(a_request(1), [1], logprobs=logprobs(2)),
        EngineCoreOutput(a_request(2, num_preemptions=1), [2], logprobs=logprobs(10**6)),
    ]
    step = StepOutputs(7, outputs, timestamp=1.5)

    [message] = messages_of(step, MIB)

    whole, failed = message.outputs.outputs
    assert unpack_u32(whole.new_token_ids) == [1]
    assert failed.finish_reason == FinishReason.ERROR
    text = "What one step brought for the request takes a message of 80000"
    assert from_status(failed.status).message.startswith(text)
    assert f"the limit is {MIB}" in from_status(failed.status).message
    assert [event.timestamp_monotonic_s for event in failed.events] == [1.5]


def sized(key: int, num_bytes: int) -> EngineCoreOutput:
    """Return an output that takes exactly so many bytes in a message."""
    output, filling = EngineCoreOutput(a_request(key), [key]), num_bytes
    while True:
        output.prompt_logprobs = Logprobs(bytes(filling), b"", b"", 1, 1)
        excess = encode_message(StepOutputs(0, [output]))[0].outputs.outputs[0].ByteSize() - num_bytes
        if not excess:
            return output
        filling -= excess


def test_sizes_are_counted_to_the_byte():
    """Each output counts 16 bytes more than it takes; 256 bytes of a message are for what stands beside them."""
    room = BATCH_BYTES - encode_message(StepOutputs(7, []))[0].outputs.ByteSize()
    largest, half = MIB - 256 - 16, room // 2 - 16
    [failure] = encode_message(StepOutputs(7, [sized(1, largest + 1)]), most_bytes=MIB)[0].outputs.outputs
    rest, rest_behind_failure = (room - (each + 16) - 16 for each in (half, failure.ByteSize()))
    steps = [
        [sized(1, largest)],
        [sized(1, largest + 1)],
        [sized(1, half), sized(2, rest)],
        [sized(1, half), sized(2, rest + 1)],
        [sized(1, largest + 1), sized(2, rest_behind_failure)],
        [sized(1, largest + 1), sized(2, rest_behind_failure + 1)],
    ]

    messages = [messages_of(StepOutputs(7, step), MIB) for step in steps]

    has_error = [message[0].outputs.outputs[0].HasField("status") for message in messages]
    assert has_error == [False, True, False, False, True, True]
    assert [len(message) for message in messages] == [1, 1, 1, 2, 1, 2]
    failed = messages[1][0].outputs.outputs[0]
    assert (failed.request_id, failed.handle) == ("r1" * 8, 1)


async def test_steps_for_a_slow_frontend_are_not_merged_into_one_that_fits_no_message():
    request, outbox = a_request(1), Outbox(capacity=2)
    for step_id in range(100):
        outbox.put(StepOutputs(step_id, [EngineCoreOutput(request, [step_id], logprobs=logprobs(49_153))]))
    outbox.close()

    steps = []
    while (step := await asyncio.wait_for(outbox.get(), 5)) is not None:
        steps.append(step)

    assert [token for step in steps for output in step.outputs for token in output.new_token_ids] == list(range(100))
    assert all(messages_of(step, MIB)[0].ByteSize() <= MIB for step in steps)
    assert all(output.error is None for step in steps for output in step.outputs)
