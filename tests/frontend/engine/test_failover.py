"""Engine cores that break the contract or stay away: others take over their requests. No client sees a difference."""

import asyncio

import pytest

from tests.frontend.asking import run
from tests.frontend.fakes import TEXT, FakeEngine
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.services.errors import FailedPrecondition, PromptTooLong, Unavailable
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import engine_core_pb2

LONG = TEXT * 3


def start(llm, request_id="r", *, rank=None, **params):
    async def collect():
        fields = {"max_tokens": 60, "output_kind": RequestOutputKind.DELTA} | params
        stream = llm.generate("hi", SamplingParams(**fields), request_id, data_parallel_rank=rank)
        outputs = [output async for output in stream]
        return bytes(token_id for output in outputs for token_id in output.outputs[0].token_ids).decode(), outputs

    return asyncio.create_task(collect())


def outputs_of(request, step_id, ids=(88,), **columns):
    fields = {"handles": pack_u32([request.handle]), "num_tokens": pack_u32([len(ids)]), "token_ids": pack_u32(ids)}
    decode = engine_core_pb2.DecodeBatch(**(fields | columns))
    return engine_core_pb2.SessionResponse(outputs=engine_core_pb2.EngineCoreOutputs(step_id=step_id, decode=decode))


NONSENSE = {
    "a step that came before": lambda request: outputs_of(request, 5),
    "columns that disagree": lambda request: outputs_of(request, 99, num_tokens=pack_u32([3])),
    "a column that is cut": lambda request: outputs_of(request, 99, token_ids=b"abc"),
    "Ready again": lambda _: engine_core_pb2.SessionResponse(ready=engine_core_pb2.EngineInfo()),
    "nothing": lambda _: engine_core_pb2.SessionResponse(),
}


async def two_on_each(pair, engine, second):
    """Pause both engine cores, and start two requests on each; return the tasks of the requests."""
    engine.pause()
    second.pause()
    tasks = [start(pair, f"r{i}") for i in range(4)]
    await engine.until(lambda: len(engine.running) == 2)
    await second.until(lambda: len(second.running) == 2)
    return tasks


@pytest.mark.parametrize("kind", NONSENSE)
async def test_nonsense_ends_the_session_and_reaches_no_client(connect, engine, kind):
    llm = await connect()
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await engine.take(10)

    await engine.say(NONSENSE[kind](engine.requests[0]))
    await engine.until(lambda: len(engine.requests) == 2)
    await engine.allow(None)
    text, _ = await task

    assert text == LONG[:60]
    assert engine.requests[1].resumed
    assert bytes(unpack_u32(engine.requests[1].resumed_output_token_ids)).decode() == LONG[:10]


async def test_outputs_of_a_handle_that_nobody_has_are_ignored(connect, engine):
    llm = await connect()
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await engine.take(10)

    await engine.say(outputs_of(engine_core_pb2.EngineCoreRequest(handle=4711), 10))
    engine.num_steps += 10
    await engine.allow(None)
    text, _ = await task

    assert text == LONG[:60]
    assert len(engine.requests) == 1


async def test_an_engine_that_greets_well_and_talks_nonsense_is_not_tried_for_ever(connect, engine):
    llm = await connect(recovery_timeout_s=0.5)
    engine._step = lambda _: engine_core_pb2.EngineCoreOutputs(step_id=1, decode=engine_core_pb2.DecodeBatch(handles=b"x"))

    with pytest.raises(Unavailable, match="has been away"):
        await asyncio.wait_for(start(llm), 10)


async def test_an_engine_that_was_replaced_is_not_believed(connect, engine):
    llm = await connect()
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    old = engine._epoch
    await restart(engine, epoch=old + 5)
    await engine.until(lambda: len(engine.requests) == 2)

    await restart(engine, epoch=old)
    await asyncio.wait_for(refused_sessions(engine), 10)
    still_two = len(engine.requests)
    await restart(engine, epoch=old + 6)
    await engine.allow(None)

    assert still_two == 2
    assert (await task)[0] == LONG[:60]


async def test_an_engine_that_started_after_its_clock_was_set_back_is_believed(connect, engine):
    engine._epoch = 1_000
    await engine.kill()
    await engine.start()
    llm = await connect()
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)

    await restart(engine, epoch=10)
    await engine.allow(None)

    assert (await asyncio.wait_for(task, 10))[0] == LONG[:60]


async def restart(engine, *, epoch):
    await engine.kill()
    engine._epoch = epoch - 1  # `start` adds one
    await engine.start()


async def refused_sessions(engine):
    """Wait until a session was opened and given up again."""
    before = engine._context
    while engine._context is before:  # noqa: ASYNC110 - the fake has no event to wait for
        await asyncio.sleep(0.01)


@pytest.fixture
async def second(sockets):
    fake = FakeEngine(sockets / "e2")
    await fake.start()
    yield fake
    await fake.kill()


@pytest.fixture
async def pair(connect, engine, second):
    return await connect(engine_targets=(engine.target, second.target))


async def test_another_engine_goes_on_for_one_that_stays_away(pair, engine, second):
    tasks = await two_on_each(pair, engine, second)
    await engine.take(10)

    await engine.kill()
    await second.until(lambda: len(second.running) == 4)
    await second.allow(None)
    texts = [text for text, _ in await asyncio.gather(*tasks)]

    assert texts == [LONG[:60]] * 4
    moved = second.requests[2:]
    assert all(request.resumed and len(request.resumed_output_token_ids) == 40 for request in moved)


async def test_another_engine_goes_on_for_one_that_returns_with_another_contract(pair, engine, second):
    """As in a rolling upgrade: the new engine core refuses this frontend before the requests of the old one were moved."""
    pair.backends.engines._take_over_after_s = 1000
    tasks = await two_on_each(pair, engine, second)
    await engine.take(10)

    await engine.kill()
    engine.refusal = FailedPrecondition("unknown schema revision 99")
    await engine.start()
    await second.allow(None)
    texts = [text for text, _ in await asyncio.wait_for(asyncio.gather(*tasks), 10)]

    assert texts == [LONG[:60]] * 4


async def test_a_pinned_request_waits_for_its_engine(pair, engine, second):
    engine.pause()
    task = start(pair, rank=0)
    await engine.until(lambda: engine.running)
    await engine.kill()
    other = start(pair, "other")  # on the second engine, after which the first has been away for a while
    await asyncio.wait_for(other, 10)

    await engine.start()
    await engine.allow(None)

    assert (await task)[0] == LONG[:60]
    assert [request.external_req_id for request in second.requests] == ["other"]


@pytest.mark.parametrize("kind", ["WORKER_LOST", "DRAINING", "SLEEPING", "STALLED"])
async def test_new_requests_avoid_an_engine_with_a_problem(pair, engine, second, kind):
    await engine.tell(f"ENGINE_NOTICE_KIND_{kind}")
    async with asyncio.timeout(10):
        async for report in pair.readiness.follow():
            if any(each.problem for each in report.dependencies):
                break

    await asyncio.gather(*(start(pair, f"r{i}", max_tokens=3) for i in range(4)))

    assert report.ready, "one engine is enough"
    assert (len(engine.requests), len(second.requests)) == (0, 4)


@pytest.mark.parametrize("reason", ["DRAINING", "SLEEPING"])
async def test_what_an_engine_refuses_because_it_leaves_or_sleeps_goes_to_another_at_once(pair, engine, second, reason):
    for each in (engine, second):
        each.reject = lambda _: None
    engine.reject = lambda _: Unavailable("not now", reason=reason)

    texts = await asyncio.wait_for(asyncio.gather(*(start(pair, f"r{i}") for i in range(4))), 10)

    assert [text for text, _ in texts] == [LONG[:60]] * 4
    assert [request.resumed for request in second.requests] == [False] * 4, "no engine had accepted them"


async def test_a_suspect_that_a_leaving_engine_refuses_stays_a_suspect_of_the_next(pair, engine, second):
    """The requests that wait while it runs alone follow it."""
    pair.backends.engines._take_over_after_s = 1000
    tasks = await two_on_each(pair, engine, second)
    suspect = pair.backends.requests.find(engine.requests[0].handle).sequence
    suspect.num_engine_losses = 3

    await engine.kill()
    engine.reject = lambda _: Unavailable("not now", reason="DRAINING")
    await engine.start()
    await second.until(lambda: len(second.running) == 3)
    num_losses = suspect.num_engine_losses
    await second.allow(None)
    texts = [text for text, _ in await asyncio.wait_for(asyncio.gather(*tasks), 10)]

    assert num_losses == 4
    assert texts == [LONG[:60]] * 4


async def test_a_request_that_was_accepted_before_it_was_refused_stays_resumed(connect, engine):
    llm = await connect()
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await engine.take(3)
    await engine.kill()
    engine.reject = lambda _: Unavailable("going down", reason="DRAINING")
    await engine.start()
    await engine.until(lambda: len(engine.requests) == 2)
    await engine.kill()
    engine.reject = lambda _: None
    await engine.start()
    await engine.allow(None)

    assert (await task)[0] == LONG[:60]
    assert [request.resumed for request in engine.requests] == [False, True, True]


async def test_a_smaller_engine_that_comes_lowers_the_limit_of_prompts(pair, second):
    before = pair.max_model_len
    await second.kill()
    second.max_model_len = 100
    await second.start()
    async with asyncio.timeout(10):
        async for _ in pair.readiness.follow():
            if pair.max_model_len == 100:
                break

    with pytest.raises(PromptTooLong, match="maximum context length is 100 tokens"):
        await run(pair, "x" * 200)

    assert before == 512


async def test_what_the_only_engine_refuses_in_its_sleep_fails_at_once(connect, engine):
    llm = await connect()
    engine.reject = lambda _: Unavailable("The engine sleeps at level 1; wake it up first.", reason="SLEEPING")

    with pytest.raises(Unavailable, match="wake it up") as refused:
        await asyncio.wait_for(start(llm), 10)

    assert refused.value.reason == "SLEEPING"
    assert llm.readiness.report().problem == "No engine core makes progress (asleep)."


async def test_what_no_engine_was_told_of_is_new_to_the_next(connect, engine):
    llm = await connect()
    engine.pause()
    known = start(llm, "known")
    await engine.until(lambda: engine.running)
    await engine.kill()
    async with asyncio.timeout(10):
        async for report in llm.readiness.follow():
            if not report.ready:
                break
    unknown = start(llm, "unknown")
    while llm.num_unfinished_requests < 2:  # noqa: ASYNC110 - the tokenizer has no event for its prompt
        await asyncio.sleep(0.005)

    await engine.start()
    await engine.allow(None)
    await asyncio.gather(known, unknown)

    assert {request.external_req_id: request.resumed for request in engine.requests[1:]} == {"known": True, "unknown": False}
