"""What a slow frontend finds in its outbox."""

import asyncio

from tetrad.engine_core_svc.outbox import Notice, Outbox, Rejection, StepOutputs
from tetrad.engine_core_svc.request import Request
from tetrad.engine_core_svc.scheduler.output import EngineCoreOutput, FinishReason
from tetrad.services.errors import InvalidRequest


def a_request(key: int) -> Request:
    return Request(key=key, request_id=f"r{key}", token_ids=[1], num_prompt_tokens=1, max_total_tokens=100)


async def test_messages_come_in_order():
    outbox = Outbox()
    for step_id in range(3):
        outbox.put(StepOutputs(step_id))

    assert [(await outbox.get()).step_id for _ in range(3)] == [0, 1, 2]


async def test_steps_beyond_the_capacity_are_merged_request_by_request():
    outbox, first, second = Outbox(capacity=1), a_request(1), a_request(2)
    outbox.put(StepOutputs(0, [EngineCoreOutput(first, [10])]))
    outbox.put(StepOutputs(1, [EngineCoreOutput(first, [11]), EngineCoreOutput(second, [20])]))
    outbox.put(StepOutputs(2, [EngineCoreOutput(first, [12], FinishReason.STOP, 12)]))

    merged = await outbox.get()

    assert len(outbox) == 0
    assert merged.step_id == 2
    assert [(output.new_token_ids, output.finish_reason) for output in merged.outputs] == [
        ([10, 11, 12], FinishReason.STOP),
        ([20], None),
    ]


async def test_a_notice_is_never_merged_away():
    outbox = Outbox(capacity=1)
    for message in (StepOutputs(0), Notice("DRAINING", ""), StepOutputs(1)):
        outbox.put(message)

    assert [type(await outbox.get()) for _ in range(3)] == [StepOutputs, Notice, StepOutputs]


async def test_a_closed_outbox_gives_what_it_has_and_then_ends():
    outbox = Outbox()
    outbox.put(StepOutputs(0))
    outbox.close()

    assert (await outbox.get()).step_id == 0
    assert await outbox.get() is None


async def test_a_client_that_does_not_read_is_not_listened_to_until_it_does():
    box = Outbox(max_answers=3)
    for number in range(3):
        box.put(Rejection(f"r{number}", InvalidRequest("no")))
    waiting = asyncio.create_task(box.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()

    await box.get()

    await asyncio.wait_for(waiting, 5)


async def test_merged_outputs_count_as_answers_and_closing_lets_go():
    box = Outbox(capacity=1, max_answers=2)
    for step_id in range(2):
        box.put(StepOutputs(step_id, [EngineCoreOutput(a_request(step_id), [1])]))
    waiting = asyncio.create_task(box.wait_for_room())
    await asyncio.sleep(0)
    assert (len(box), waiting.done()) == (1, False)

    box.close()

    await asyncio.wait_for(waiting, 5)


def test_notices_do_not_pile_up():
    box = Outbox(capacity=4)

    for number in range(100):
        box.put(Notice("WORKER_LOST", str(number)))
        box.put(Notice("RECOVERED", str(number)))

    assert len(box) <= 6
