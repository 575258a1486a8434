"""Engine cores that leave, return, are lost together or during tokenization: each request continues where it can."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from tests.frontend.fakes import TEXT, FakeEngine
from tetrad.frontend.engine.client_outgoing import AddMessage
from tetrad.frontend.llm.limits import Limits
from tetrad.frontend.request.deadlines import deadline_after
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.services.errors import InvalidRequest, Unavailable
from tetrad.v1 import engine_core_pb2

LONG = TEXT * 3


def start(llm, request_id="r", *, rank=None, **params):
    async def collect():
        fields = {"max_tokens": 60, "output_kind": RequestOutputKind.DELTA} | params
        outputs = [o async for o in llm.generate("hi", SamplingParams(**fields), request_id, data_parallel_rank=rank)]
        return bytes(token_id for output in outputs for token_id in output.outputs[0].token_ids).decode()

    return asyncio.create_task(collect())


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


async def until_connected(llm, number):
    async with asyncio.timeout(10):
        async for report in llm.readiness.follow():
            if sum("engine" in each.name and not each.problem for each in report.dependencies) == number:
                return


@pytest.fixture
async def second(sockets):
    fake = FakeEngine(sockets / "e2")
    await fake.start()
    yield fake
    await fake.kill()


@pytest.fixture
async def pair(connect, engine, second):
    """Two engines, of which one goes on for the other after a tenth of a second."""
    llm = await connect(engine_targets=(engine.target, second.target), recovery_timeout_s=3.0)
    llm.backends.engines._take_over_after_s = 0.1
    return llm


def draining(_):
    return Unavailable("going down", reason="DRAINING")


async def test_an_engine_that_is_lost_while_a_prompt_is_tokenized_does_not_get_the_request(pair, engine, second, tokenizer):
    tokenizer.hung.clear()
    tasks = [start(pair, f"r{i}") for i in range(4)]
    await until(lambda: tokenizer.num_calls == 4)
    await engine.kill()
    await until_connected(pair, 1)

    tokenizer.hung.set()
    texts = await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert texts == [LONG[:60]] * 4
    assert len(second.requests) == 4


@pytest.mark.parametrize("given_up", [False, True])
async def test_requests_that_arrive_when_all_engines_are_lost_go_to_the_first_that_is_back(pair, engine, second, given_up):
    first = pair.backends.engines.engines[0]
    await engine.kill()
    await until_connected(pair, 1)
    await until(lambda: not pair.backends.engines._timers)
    if given_up:
        first._expire()
    await second.kill()
    await until_connected(pair, 0)

    tasks = [start(pair, f"r{i}") for i in range(4)]
    await until(lambda: pair.num_unfinished_requests == 4)
    await second.start()
    texts = await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert texts == [LONG[:60]] * 4


async def test_a_pinned_request_does_not_move_with_the_others(pair, engine, second):
    engine.pause()
    await second.tell("ENGINE_NOTICE_KIND_WORKER_LOST")
    await until_connected(pair, 1)
    pinned, free = start(pair, "pinned", rank=0), start(pair, "free")
    await engine.until(lambda: len(engine.running) == 2)
    await second.tell("ENGINE_NOTICE_KIND_RECOVERED")
    await until_connected(pair, 2)

    await engine.kill()
    await asyncio.wait_for(free, 10)
    await engine.start()
    await engine.allow(None)

    assert await pinned == LONG[:60]
    assert "pinned" not in {request.external_req_id for request in second.requests}


async def test_a_request_that_moved_is_aborted_where_it_is(pair, engine, second):
    engine.pause()
    second.pause()
    tasks = [start(pair, f"r{i}") for i in range(2)]
    await engine.until(lambda: engine.running)
    await engine.kill()
    await second.until(lambda: len(second.running) == 2)

    await pair.abort(["r0", "r1"])
    await asyncio.gather(*tasks)

    await second.until(lambda: len(second.aborted) == 2)
    assert pair.backends.engines.engines[1].num_unfinished == 0


async def test_a_pinned_request_that_a_draining_engine_refuses_waits_for_its_successor(pair, engine, second):
    engine.reject = draining
    pinned = start(pair, "pinned", rank=0)
    await engine.until(lambda: engine.requests)

    await engine.kill()
    engine.reject = lambda _: None
    await engine.start()

    assert await pinned == LONG[:60]
    assert not second.requests


async def test_what_a_draining_engine_runs_is_not_failed_with_what_it_refuses(connect, engine):
    """Else every request that arrives would put an end to those that the engine is finishing."""
    llm = await connect(recovery_timeout_s=0.2)
    engine.pause()
    running = start(llm, "running")
    await engine.until(lambda: engine.running)
    engine.reject = draining
    refused = start(llm, "refused")

    with pytest.raises(Unavailable, match=r"is shutting down and was not replaced within 0.2 s"):
        await refused
    await engine.allow(None)

    assert await running == LONG[:60]
    assert llm.num_unfinished_requests == llm.admission.num_requests == 0


async def test_what_a_draining_engine_refused_goes_to_another_as_soon_as_that_is_well(pair, engine, second):
    """The draining one may run its last requests for longer than the others wait."""
    await second.tell("ENGINE_NOTICE_KIND_WORKER_LOST")
    await until_connected(pair, 1)
    engine.reject = draining
    pinned = start(pair, "pinned", rank=0)
    task = start(pair)
    await until(lambda: len(pair.backends.engines.engines[0]._requests._refused._timers) == 2)

    await second.tell("ENGINE_NOTICE_KIND_RECOVERED")

    assert await asyncio.wait_for(task, 2) == LONG[:60]
    assert not pinned.done()
    assert [request.external_req_id for request in second.requests] == ["r"]
    assert not second.requests[0].resumed, "no engine had accepted it"
    await pair.abort("pinned")
    await pinned


async def test_a_refused_request_that_is_aborted_is_not_failed_later(connect, engine):
    llm = await connect(recovery_timeout_s=0.2)
    engine.reject = draining
    task = start(llm, "r")
    await engine.until(lambda: engine.requests)
    await until(lambda: llm.backends.engines.engines[0]._requests._refused._timers)

    await llm.abort("r")

    assert await task == ""
    assert not llm.backends.engines.engines[0]._requests._refused._timers


@pytest.mark.parametrize("reason", ["INVALID", "DRAINING"])
async def test_what_an_engine_refuses_is_no_load_of_it(pair, engine, second, reason):
    """Else other engine cores would get all requests until they have as many."""
    engine.reject = draining if reason == "DRAINING" else lambda _: InvalidRequest("no")
    tasks = [start(pair, f"r{i}") for i in range(6)]

    await asyncio.gather(*tasks, return_exceptions=True)

    assert engine.requests
    assert [each.load.num_requests(0) for each in pair.backends.engines.engines] == [0, 0]


async def test_what_is_aborted_before_its_first_step_is_no_load(llm, engine):
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)

    await llm.abort("r")
    await task

    assert llm.backends.engines.engines[0].load.num_requests(0) == 0


async def test_what_moved_from_a_lost_engine_is_no_load_when_it_returns(pair, engine, second):
    await asyncio.gather(engine.kill(), second.kill())
    await until_connected(pair, 0)
    tasks = [start(pair, f"r{i}") for i in range(4)]
    await until(lambda: all(each.num_unfinished for each in pair.backends.engines.engines))
    await second.start()
    await asyncio.gather(*tasks)

    await engine.start()
    await until_connected(pair, 2)

    assert pair.backends.engines.engines[0].load.num_requests(0) == 0


async def test_what_is_finished_is_not_resumed(llm, engine):
    await start(llm, "done")
    engine.pause()
    running = start(llm, "running", n=2, stop=["brown"])
    await engine.until(lambda: len(engine.running) == 2)
    await engine.kill()

    await engine.start()
    await engine.allow(None)
    await running

    assert [request.external_req_id for request in engine.requests if request.resumed] == ["running"] * 2
    assert llm.backends.engines.engines[0].num_unfinished == 0


async def test_of_n_outputs_only_those_that_go_on_are_resumed(llm, engine):
    """The second output ends at once, by its own stop token."""
    engine.pause()
    params = SamplingParams(n=2, max_tokens=30, stop_token_ids=[1], seed=5, output_kind=RequestOutputKind.FINAL_ONLY)
    stream = await llm.add_request("r", "hi", params)
    await engine.until(lambda: len(engine.running) == 2)
    ending = next(each for each in engine.running.values() if each.request.sampling_params.seed == 6)
    ending.prompt = [0]
    engine.reply = lambda prompt, position: 1 if prompt == [0] else LONG.encode()[position]
    await engine.take(5)
    await until(lambda: llm.backends.engines.engines[0].num_unfinished == 1)

    await engine.kill()
    await engine.start()
    await engine.allow(None)
    output = await stream.get()

    assert {each.index: bytes(each.token_ids) for each in output.outputs} == {0: LONG[:30].encode(), 1: b"\x01"}
    assert [request.sampling_params.seed for request in engine.requests if request.resumed] == [5]
    stream.close()


async def test_an_engine_that_is_back_has_all_the_time_it_needs(connect, engine):
    llm = await connect(recovery_timeout_s=0.6)
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await engine.kill()
    await engine.start()
    await engine.until(lambda: len(engine.requests) == 2)

    await asyncio.sleep(0.7)  # longer than it may be away

    await engine.allow(None)
    assert await task == LONG[:60]


async def test_one_piece_of_nonsense_is_forgiven_with_the_first_good_step(connect, engine):
    llm = await connect(recovery_timeout_s=0.6)
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await engine.say(engine_core_pb2.SessionResponse())
    await engine.until(lambda: len(engine.requests) == 2)
    await engine.take(3)

    await asyncio.sleep(0.7)  # longer than it may talk nonsense

    await engine.allow(None)
    assert await task == LONG[:60]


async def test_nonsense_that_came_before_a_request_does_not_fail_it(connect, engine):
    """Without requests, the engine core has had nothing to answer since."""
    llm = await connect(recovery_timeout_s=0.3)
    client = llm.backends.engines.engines[0]
    await engine.say(engine_core_pb2.SessionResponse())
    await until(lambda: client.connected and client.num_sessions == 2)
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)

    await until(lambda: client._expiry is None)

    await engine.allow(None)
    assert await task == LONG[:60]


async def test_what_fails_because_an_engine_talks_nonsense_is_aborted_there(connect, engine):
    """Its answers are of no use, but it computes them."""
    llm = await connect(recovery_timeout_s=0.3)
    engine.pause()
    task = start(llm)
    await engine.until(lambda: engine.running)
    await engine.say(engine_core_pb2.SessionResponse())
    await engine.until(lambda: len(engine.requests) == 2)

    with pytest.raises(Unavailable):
        await task

    await engine.until(lambda: len(engine.aborted) == 1)


async def test_many_long_requests_travel_in_messages_of_bounded_size(connect, engine):
    llm = await connect(recovery_timeout_s=10)
    engine.max_model_len = 1 << 20
    await engine.kill()
    await until_connected(llm, 0)
    llm._intake._inputs.limits = Limits(llm.settings, context=SimpleNamespace(max_model_len=1 << 20), vocab_size=258)
    prompt = [104] * 200_000

    tasks = [asyncio.create_task(anext(llm.generate(prompt, SamplingParams(max_tokens=1), f"r{i}"))) for i in range(8)]
    await until(lambda: llm.num_unfinished_requests == 8)
    await engine.start()
    await asyncio.gather(*tasks)

    assert len(engine.requests) == 8
    assert max(engine.add_sizes) < 1 << 20, "what every engine core reads, unless one request alone is larger"


async def test_a_message_that_cannot_be_made_ends_its_session_but_no_request(llm, engine, monkeypatch):
    encode, failures = AddMessage.encode, [ValueError("a bug")]

    async def fail_once(message):
        if failures:
            raise failures.pop()
        return await encode(message)

    monkeypatch.setattr(AddMessage, "encode", fail_once)

    assert await asyncio.wait_for(start(llm), 10) == LONG[:60]
    assert llm.backends.engines.engines[0].num_sessions == 2


@pytest.mark.parametrize("timeout_s", [4e11, math.inf])
async def test_a_time_limit_that_no_message_can_carry_keeps_no_request_from_its_engine(llm, engine, timeout_s):
    """gRPC clients may send limits of thousands of years."""
    with deadline_after(timeout_s):
        first = start(llm, "first")
    second = start(llm, "second")

    assert await asyncio.wait_for(asyncio.gather(first, second), 10) == [LONG[:60]] * 2


async def test_a_request_id_that_no_message_can_carry_is_refused_and_leaves_nothing(llm):
    with pytest.raises(InvalidRequest, match="request_id must be valid text"):
        await start(llm, "a\ud800")

    assert llm.num_unfinished_requests == llm.admission.num_requests == 0
