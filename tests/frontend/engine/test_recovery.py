"""Lost engine cores and tokenizers: no token is lost or repeated, and no request hangs."""

import asyncio

import pytest

from tests.carriers import OVER_EACH_CARRIER
from tests.frontend.fakes import TEXT
from tetrad.frontend.engine.crash_isolation import LOSSES_TO_SUSPECT
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import PoisonousRequest, Unavailable
from tetrad.services.rpc.columns import unpack_u32

pytestmark = OVER_EACH_CARRIER

LONG = TEXT * 3


def start(llm, request_id, **params):
    async def collect():
        fields = {"max_tokens": 60, "output_kind": RequestOutputKind.DELTA} | params
        return [output async for output in llm.generate("hi", SamplingParams(**fields), request_id)]

    return asyncio.create_task(collect())


def whole(outputs):
    text = "".join(output.outputs[0].text for output in outputs)
    ids = [token_id for output in outputs for token_id in output.outputs[0].token_ids]
    return text, bytes(ids).decode()


async def test_engine_restart_loses_and_repeats_no_token(llm, engine):
    engine.pause()
    tasks = [start(llm, f"r{i}") for i in range(8)]
    await engine.until(lambda: len(engine.running) == 8)
    await engine.take(20)

    await engine.kill()
    await engine.start()
    await engine.allow(None)
    results = await asyncio.gather(*tasks)

    assert [whole(outputs) for outputs in results] == [(LONG[:60], LONG[:60])] * 8
    resumed = engine.requests[8:]
    assert len(resumed) == 8
    assert all(bytes(unpack_u32(request.resumed_output_token_ids)).decode() == LONG[:20] for request in resumed)
    assert [request.sampling_params.seed for request in resumed] == [r.sampling_params.seed for r in engine.requests[:8]]


KINDS = {
    "plain": {},
    "seeded": {"seed": 7, "temperature": 0.8},
    "penalised": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "logprobs": {"logprobs": 2},
    "prompt logprobs": {"logprobs": 1, "prompt_logprobs": 1},
    "prompt scores": {"prompt_logprob_token_ids": [5, 6]},
    "structured": {"structured_outputs": StructuredOutputsParams(regex="[a-z]+")},
    "n": {"n": 3, "seed": 1},
    "stop across the restart": {"stop": ["brown fox"]},
    "stop with output": {"stop": ["brown fox"], "include_stop_str_in_output": True},
    "whole at the end": {"output_kind": RequestOutputKind.FINAL_ONLY},
    "cumulative": {"output_kind": RequestOutputKind.CUMULATIVE, "logprobs": 1},
    "ids alone": {"detokenize": False},
}


def answer_of(outputs):
    """Return all that a client can see of an answer, put together by output."""
    parts = {}
    for output in outputs:
        for each in output.outputs:
            parts.setdefault(each.index, []).append((each.text, each.token_ids, each.logprobs))
    ends = [(each.index, each.finish_reason, each.stop_reason) for output in outputs for each in output.outputs]
    last = {index: (reason, stop) for index, reason, stop in ends if reason is not None}
    prompt = next((output.prompt_logprobs for output in reversed(outputs) if output.prompt_logprobs), None)
    return {index: _joined(each) for index, each in parts.items()}, last, prompt


def _joined(parts):
    texts, ids, logprobs = zip(*parts, strict=True)
    return "".join(texts), [i for each in ids for i in each], [position for each in logprobs for position in each or ()]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_restart_changes_no_answer(llm, engine, kind):
    """13 tokens: in the middle of "brown"."""
    undisturbed = answer_of(await start(llm, "undisturbed", **KINDS[kind]))
    engine.pause()
    task = start(llm, "r", **KINDS[kind])
    num = KINDS[kind].get("n", 1)
    await engine.until(lambda: len(engine.running) == num)
    await engine.take(13)

    await engine.kill()
    await engine.start()
    await engine.allow(None)
    disturbed = answer_of(await task)

    assert disturbed == undisturbed
    assert sum(request.resumed for request in engine.requests) == num


async def test_requests_that_arrive_while_the_engine_is_away_wait_for_it(llm, engine):
    await engine.kill()
    await until_unhealthy(llm)
    task = start(llm, "r")

    await engine.start()

    assert whole(await task)[0] == LONG[:60]


async def test_abort_while_the_engine_is_away_is_not_resumed(llm, engine):
    engine.pause()
    task = start(llm, "r")
    await engine.until(lambda: engine.running)
    await engine.kill()

    await llm.abort("r")
    outputs = await task
    await engine.start()
    await engine.allow(None)
    await start(llm, "other")

    assert outputs[-1].outputs[0].finish_reason == "abort"
    assert [request.external_req_id for request in engine.requests] == ["r", "other"]


async def test_requests_fail_when_the_engine_stays_away(connect, engine):
    llm = await connect(recovery_timeout_s=0.3)
    engine.pause()
    task = start(llm, "r")
    await engine.until(lambda: engine.running)

    await engine.kill()

    with pytest.raises(Unavailable, match=r"has been away for more than 0.3 s"):
        await task
    with pytest.raises(Unavailable, match="has been away"):
        await start(llm, "later")
    assert llm.num_unfinished_requests == 0


async def test_engine_that_comes_back_late_serves_new_requests(connect, engine):
    llm = await connect(recovery_timeout_s=0.1)
    await engine.kill()
    with pytest.raises(Unavailable):
        await start(llm, "r")

    await engine.start()
    while True:
        try:
            outputs = await start(llm, "again")
            break
        except Unavailable:
            await asyncio.sleep(0.02)

    assert whole(outputs)[0] == LONG[:60]


async def test_request_that_a_draining_engine_refuses_goes_to_its_successor(llm, engine):
    engine.reject = lambda request: Unavailable("going down", reason="DRAINING")
    task = start(llm, "r")
    await engine.until(lambda: engine.requests)

    await engine.kill()
    engine.reject = lambda request: None
    await engine.start()

    assert whole(await task)[0] == LONG[:60]
    assert not engine.requests[-1].resumed, "no engine had accepted it"


@pytest.mark.parametrize("data", [LONG.encode(), "añ€😀".encode() * 20])
async def test_tokenizer_restart_loses_and_repeats_no_character(llm, engine, tokenizer, data):
    engine.reply = lambda _, position: data[position]
    engine.pause()
    tasks = [start(llm, f"r{i}") for i in range(4)]
    await engine.until(lambda: len(engine.running) == 4)
    # 18 bytes: in the middle of a character of the second text.
    await engine.take(18)
    await tokenizer.until_brought(18)

    await tokenizer.kill()
    await tokenizer.start()
    await engine.allow(None)
    results = await asyncio.gather(*tasks)

    expected = data[:60].decode(errors="replace")
    assert ["".join(output.outputs[0].text for output in outputs) for outputs in results] == [expected] * 4


async def test_stop_string_across_a_tokenizer_restart_is_found(llm, engine, tokenizer):
    engine.pause()
    task = start(llm, "r", stop=["quick"])
    await engine.until(lambda: engine.running)
    await engine.take(6)
    await tokenizer.until_brought(6)

    await tokenizer.kill()
    await tokenizer.start()
    await engine.allow(None)

    assert whole(await task)[0] == "The "


async def test_requests_fail_when_the_tokenizer_stays_away(connect, engine, tokenizer):
    llm = await connect(recovery_timeout_s=0.3)
    engine.pause()
    task = start(llm, "r")
    await engine.until(lambda: engine.running)

    await tokenizer.kill()
    await engine.allow(None)

    with pytest.raises(Unavailable, match=r"tokenizer at .* has been away"):
        await task
    with pytest.raises(Unavailable, match=r"tokenizer at .* did not answer within 0.3 s"):
        await start(llm, "later")


async def test_tokenizer_that_hangs_is_given_up(connect, tokenizer):
    llm = await connect(recovery_timeout_s=0.3)
    tokenizer.hung.clear()

    with pytest.raises(Unavailable, match="tokenizer"):
        await start(llm, "r")
    tokenizer.hung.set()

    await until_healthy(llm)
    assert whole(await start(llm, "r"))[0] == LONG[:60]


async def test_health_follows_both_services(llm, engine, tokenizer):
    await llm.check_health()

    await engine.kill()
    await until_unhealthy(llm)
    with pytest.raises(Unavailable, match="No engine core is reachable"):
        await llm.check_health()
    await engine.start()
    await until_healthy(llm)
    await tokenizer.kill()
    await until_unhealthy(llm)
    with pytest.raises(Unavailable, match="No tokenizer is reachable"):
        await llm.check_health()


async def until_healthy(llm, *, healthy=True):
    async with asyncio.timeout(10):
        while True:
            try:
                await llm.check_health()
                if healthy:
                    return
            except Unavailable:
                if not healthy:
                    return
            await asyncio.sleep(0.01)


async def until_unhealthy(llm):
    await until_healthy(llm, healthy=False)


def crash_on(engine, seed):
    """Let the engine die of requests with this seed before it answers anybody; return who was there each time."""
    deaths = []

    def reject(request):
        if request.sampling_params.seed == seed:
            deaths.append(set(engine.running))
            engine._epoch += 1
            raise RuntimeError("a fault of the engine core's")

    engine.reject = reject
    return deaths


async def test_a_request_that_ends_every_engine_core_is_found_out_and_fails_alone(llm, engine):
    engine.pause()
    tasks = [start(llm, f"r{i}") for i in range(4)]
    await engine.until(lambda: len(engine.running) == 4)
    deaths = crash_on(engine, seed=13)

    poison = start(llm, "poison", seed=13)
    with pytest.raises(PoisonousRequest, match="5 engine cores in a row died"):
        await drive(engine, poison)
    await engine.allow(None)
    results = await asyncio.gather(*tasks)

    assert [whole(outputs) for outputs in results] == [(LONG[:60], LONG[:60])] * 4
    assert len(deaths) == 5
    assert deaths[-1] == set()
    assert whole(await start(llm, "later")) == (LONG[:60], LONG[:60])


async def drive(engine, task):
    """Let the engine go on, a step at a time, once there is a suspect; return what the task does."""
    while not task.done():
        await asyncio.wait([task], timeout=0.05)
        if engine._epoch > LOSSES_TO_SUSPECT:
            await engine.allow(1)
    return task.result()


async def test_requests_that_come_on_are_never_blamed_for_engine_cores_that_die(llm, engine):
    engine.pause()
    tasks = [start(llm, f"r{i}") for i in range(3)]
    for death in range(8):
        await engine.until(lambda: len(engine.running) == 3)
        await engine.take(1 if death else 2)
        await engine.kill()
        await engine.start()
    await engine.allow(None)
    results = await asyncio.gather(*tasks)

    assert [whole(outputs) for outputs in results] == [(LONG[:60], LONG[:60])] * 3
