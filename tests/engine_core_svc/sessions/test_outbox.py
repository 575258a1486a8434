"""The outbox of a slow frontend."""

import asyncio

from tetrad.engine_core_svc.core.plan import EngineCoreOutput, FinishReason, Logprobs, PrefillStats
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.engine_core_svc.sessions.outbox import Notice, Outbox, Rejection, StepOutputs
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32


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


async def test_steps_of_different_weights_are_not_merged():
    outbox, request = Outbox(capacity=1), a_request(1)
    for step_id, version in enumerate(["v1", "v1", "v2", "v2"]):
        outbox.put(StepOutputs(step_id, [EngineCoreOutput(request, [step_id])], weight_version=version))

    merged = [await outbox.get() for _ in range(len(outbox))]

    assert [(step.weight_version, step.outputs[0].new_token_ids) for step in merged] == [("v1", [0, 1]), ("v2", [2, 3])]


async def test_a_stop_without_a_token_is_not_merged_with_earlier_tokens():
    """As at the end of a constraint: the last token has text, unlike a stop token."""
    outbox, request = Outbox(capacity=1), a_request(1)
    outbox.put(StepOutputs(0, [EngineCoreOutput(request, [10])]))
    outbox.put(StepOutputs(0, [EngineCoreOutput(request, [], FinishReason.STOP)]))

    outputs = [output for _ in range(len(outbox)) for output in (await outbox.get()).outputs]

    assert [(output.new_token_ids, output.finish_reason) for output in outputs] == [([10], None), ([], FinishReason.STOP)]


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


async def contents(box: Outbox) -> list[object]:
    """Empty the box; return the kind of each notice and the step of each output."""
    box.close()
    messages = []
    while (message := await box.get()) is not None:
        messages.append((message.kind, message.text) if isinstance(message, Notice) else message.step_id)
    return messages


async def test_a_full_box_keeps_the_last_notices_and_few_others():
    box = Outbox(capacity=4)

    for number in range(100):
        box.put(Notice("WORKER_LOST", str(number)))
        box.put(Notice("RECOVERED", str(number)))

    kept = await contents(box)
    assert kept[-2:] == [("WORKER_LOST", "99"), ("RECOVERED", "99")]
    assert len(kept) <= 6


async def test_a_notice_leaves_those_of_other_kinds_where_they_are():
    box = Outbox(capacity=2)
    for message in (Notice("DRAINING", "a"), StepOutputs(0), Notice("WORKER_LOST", "b"), Notice("DRAINING", "c")):
        box.put(message)

    assert await contents(box) == [0, ("WORKER_LOST", "b"), ("DRAINING", "c")]


async def test_a_box_with_room_keeps_every_notice():
    box = Outbox(capacity=4)
    for text in "ab":
        box.put(Notice("WORKER_LOST", text))

    assert await contents(box) == [("WORKER_LOST", "a"), ("WORKER_LOST", "b")]


async def test_a_rejection_in_a_full_box_is_kept_beside_the_last_step():
    box = Outbox(capacity=1)
    box.put(StepOutputs(0))
    box.put(Rejection("r", InvalidRequest("no")))
    box.put(StepOutputs(1))

    assert [type(await box.get()) for _ in range(3)] == [StepOutputs, Rejection, StepOutputs]


async def test_merged_steps_keep_the_last_stats():
    box = Outbox(capacity=1)
    first, last = (SchedulerStats(number, 0, 0.0, 0, 0, 0, number) for number in range(2))
    for step_id, stats in enumerate((first, last, None)):
        box.put(StepOutputs(step_id, stats=stats))

    merged = await box.get()

    assert merged.stats is last


async def test_merged_steps_have_the_time_of_the_last():
    box = Outbox(capacity=1)
    box.put(StepOutputs(0, timestamp=1.0))
    box.put(StepOutputs(1, timestamp=2.0))

    assert (await box.get()).timestamp == 2.0


def logprobs_of(*token_ids: int) -> Logprobs:
    ids = pack_u32(token_ids)
    return Logprobs(ids, b"l" * len(ids), b"r" * len(ids), len(token_ids), 1)


async def test_logprobs_of_merged_outputs_are_joined_and_what_comes_once_is_kept():
    box, request = Outbox(capacity=1), a_request(1)
    prompt, prefill = logprobs_of(5, 6), PrefillStats(num_prompt_tokens=4, num_cached_tokens=3)
    outputs = [
        EngineCoreOutput(request, [10], logprobs=logprobs_of(10), prompt_logprobs=prompt, prefill_stats=prefill),
        EngineCoreOutput(request, [11]),
        EngineCoreOutput(request, [12], logprobs=logprobs_of(12)),
    ]
    for step_id, output in enumerate(outputs):
        box.put(StepOutputs(step_id, [output]))

    [merged] = (await box.get()).outputs

    assert merged.new_token_ids == [10, 11, 12]
    assert merged.logprobs == Logprobs(pack_u32([10, 12]), b"l" * 8, b"r" * 8, 2, 1)
    assert (merged.prompt_logprobs, merged.prefill_stats) == (prompt, prefill)


async def test_what_comes_late_of_a_request_is_kept_too():
    box, request = Outbox(capacity=1), a_request(1)
    late, prefill = logprobs_of(11), PrefillStats(num_prompt_tokens=4, num_cached_tokens=3)
    box.put(StepOutputs(0, [EngineCoreOutput(request, [10])]))
    box.put(
        StepOutputs(1, [EngineCoreOutput(request, [11], logprobs=late, prompt_logprobs=logprobs_of(5), prefill_stats=prefill)])
    )

    [merged] = (await box.get()).outputs

    assert (merged.logprobs, merged.prompt_logprobs, merged.prefill_stats) == (late, logprobs_of(5), prefill)


async def test_merging_counts_a_request_once_and_taking_gives_its_room_back():
    box, request = Outbox(capacity=1, max_answers=2), a_request(1)
    for step_id in range(3):
        box.put(StepOutputs(step_id, [EngineCoreOutput(request, [step_id])]))
    await asyncio.wait_for(box.wait_for_room(), 5)  # one answer, not three

    await box.get()
    box.put(StepOutputs(3, [EngineCoreOutput(request, [3])]))

    await asyncio.wait_for(box.wait_for_room(), 5)


async def test_notices_are_no_answers():
    box = Outbox(max_answers=1)
    box.put(Notice("DRAINING", ""))
    box.put(StepOutputs(0))

    await asyncio.wait_for(box.wait_for_room(), 5)


async def test_whoever_waits_for_a_message_gets_the_next_one():
    box = Outbox()
    waiting = asyncio.create_task(box.get())
    await asyncio.sleep(0)

    box.put(StepOutputs(7))

    assert (await asyncio.wait_for(waiting, 5)).step_id == 7
