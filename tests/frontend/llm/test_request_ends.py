"""A request that disconnects, is aborted or fails ends alone; the outputs of a step travel together."""

import asyncio

import pytest

from tests.carriers import OVER_EACH_CARRIER
from tests.frontend.asking import DELTA, run
from tests.frontend.fakes import TEXT
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest, Overloaded

pytestmark = OVER_EACH_CARRIER


async def test_abort_ends_with_a_synthetic_output(llm, engine):
    engine.pause()
    task = asyncio.create_task(run(llm, max_tokens=400, output_kind=DELTA))
    await engine.until(lambda: engine.running)
    await engine.take(3)

    await llm.abort(["r", "unknown"])
    outputs = await task

    assert outputs[-1].outputs[0].finish_reason == "abort"
    await engine.until(lambda: engine.aborted)
    assert llm.num_unfinished_requests == 0


async def test_abort_ends_all_n_outputs(llm, engine):
    engine.pause()
    task = asyncio.create_task(run(llm, n=2, max_tokens=400))
    await engine.until(lambda: len(engine.running) == 2)

    await llm.abort("r")
    [output] = await task

    assert [each.finish_reason for each in output.outputs] == ["abort", "abort"]


async def test_leaving_the_loop_aborts_at_the_engine(llm, engine):
    outputs = llm.generate("hi", SamplingParams(max_tokens=400, output_kind=DELTA), "r")
    await anext(outputs)

    await outputs.aclose()

    await engine.until(lambda: engine.aborted)
    assert llm.num_unfinished_requests == 0


async def test_cancelled_consumer_aborts_at_the_engine(llm, engine):
    engine.pause()
    task = asyncio.create_task(run(llm, max_tokens=400))
    await engine.until(lambda: engine.running)

    task.cancel()

    await engine.until(lambda: engine.aborted)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_slow_consumer_gets_merged_deltas_and_holds_nobody_up(llm, engine):
    slow = await llm.add_request("slow", "hi", SamplingParams(max_tokens=100, output_kind=DELTA))
    # Same length and a step later: when it is done, so is the slow one.
    await run(llm, max_tokens=100, request_id="fast")

    outputs = [output async for output in slow]

    assert len(outputs) == 1
    assert outputs[0].outputs[0].text == (TEXT * 3)[:100]
    assert len(outputs[0].outputs[0].token_ids) == 100


async def test_one_add_message_a_tick_and_one_detokenize_message_a_step(llm, engine, tokenizer):
    engine.pause()
    tasks = [asyncio.create_task(run(llm, [i + 1], f"r{i}", max_tokens=30)) for i in range(64)]
    await engine.until(lambda: len(engine.running) == 64)

    # Steps that are found together are joined: none begins before the last was brought.
    for num_steps in range(1, 31):
        await engine.allow(1)
        await tokenizer.until_brought(num_steps)
    results = await asyncio.gather(*tasks)

    assert all(result[0].outputs[0].text == TEXT[:30] for result in results)
    assert engine.num_add_messages == 1
    assert engine.num_steps == 30
    assert tokenizer.num_appends == llm.num_engine_steps == 30


async def test_one_failing_handle_fails_alone(llm, engine, tokenizer):
    engine.pause()
    tasks = [asyncio.create_task(run(llm, [i + 1], f"r{i}")) for i in range(3)]
    await engine.until(lambda: len(engine.running) == 3)
    # On a busy machine, requests may overtake each other on their way.
    [failing] = [request for request in engine.requests if request.external_req_id == "r1"]
    tokenizer.failing_handles.add(failing.handle)

    await engine.allow(None)
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [list, InvalidRequest, list]


async def test_handles_are_closed_at_the_tokenizer(llm, tokenizer):
    for i in range(3):
        await run(llm, request_id=f"r{i}")

    assert len(tokenizer.open_handles) <= 1


async def test_rejected_request_raises_its_own_error(llm, engine):
    engine.reject = lambda request: Overloaded("queue full", retry_after_s=3.0)

    with pytest.raises(Overloaded, match="queue full") as caught:
        await run(llm)

    assert caught.value.retry_after_s == 3.0
    assert llm.num_unfinished_requests == 0


async def test_ids_only_requests_send_nothing_to_the_tokenizer(llm, tokenizer):
    [output] = await run(llm, TokensPrompt(prompt_token_ids=[1, 2, 3]), detokenize=False)

    assert output.outputs[0].text == ""
    assert len(output.outputs[0].token_ids) == 20
    assert (tokenizer.num_appends, tokenizer.num_encoded) == (0, 0)
