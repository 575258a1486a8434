"""Large requests beside small ones: each fits the messages to the engine core and the tokenizer, or is refused alone."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.frontend.fakes import TEXT
from tetrad.frontend.llm.limits import Limits
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

LONG = TEXT * 10
MIB = 1 << 20


def schema_of(num_bytes: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex="a" * num_bytes)


def start(llm, request_id="r", prompt="hi", **params):
    async def collect():
        fields = {"max_tokens": 60, "output_kind": RequestOutputKind.FINAL_ONLY} | params
        [output] = [each async for each in llm.generate(prompt, SamplingParams(**fields), request_id)]
        return [each.text for each in output.outputs]

    return asyncio.create_task(collect())


@pytest.mark.parametrize(("shares", "num_shared"), [(True, 1), (False, 0)], ids=["shares", "older"])
async def test_the_outputs_of_a_request_share_their_parameters_where_the_engine_core_knows_that(
    connect, engine, shares, num_shared
):
    """An older engine core gets each request with its own parameters, in more messages."""
    engine.shares_params = shares
    llm = await connect()
    bias = dict.fromkeys(range(250), 1.0)

    texts = await start(llm, n=64, seed=5, logit_bias=bias)

    assert texts == [LONG[:60]] * 64
    assert engine.num_shared_params == num_shared
    assert sorted(each.sampling_params.seed for each in engine.requests) == list(range(5, 69))
    assert all(dict(each.sampling_params.logit_bias) == bias for each in engine.requests)


@pytest.mark.parametrize(("frontend_reads", "engine_reads"), [(MIB, None), (32 * MIB, MIB)])
async def test_a_request_that_fits_no_message_is_refused_with_its_size_and_the_limit(
    connect, engine, frontend_reads, engine_reads
):
    engine.max_message_bytes = engine_reads
    llm = await connect(max_message_bytes=frontend_reads)

    with pytest.raises(InvalidRequest, match=rf"takes a message of 11\d{{5}} bytes; the limit is {MIB} \(max_message_bytes\)"):
        await start(llm, structured_outputs=schema_of(1_100_000))

    assert not engine.requests
    assert llm.num_unfinished_requests == llm.admission.num_requests == 0
    assert await start(llm) == [LONG[:60]]


async def test_many_large_requests_travel_in_messages_that_the_engine_core_reads(connect, engine):
    """Together they have 12 MB, at the start as well as behind an engine core that was lost."""
    llm = await connect()
    engine.max_receive_bytes = MIB
    await engine.kill()
    await engine.start()
    engine.pause()
    tasks = [start(llm, f"r{i}", structured_outputs=schema_of(200_000)) for i in range(60)]
    await engine.until(lambda: len(engine.running) == 60)

    await engine.kill()
    await engine.start()
    await engine.until(lambda: len(engine.running) == 60)
    await engine.allow(None)

    assert await asyncio.gather(*tasks) == [[LONG[:60]]] * 60
    assert max(engine.add_sizes) <= MIB


async def test_a_request_whose_message_breaks_the_session_twice_fails_and_the_others_go_on(connect, engine):
    """As behind a proxy with a limit that it does not name."""
    engine.max_receive_bytes = MIB
    await engine.kill()
    await engine.start()
    llm = await connect()
    engine.pause()
    running = start(llm, "running", n=2)
    await engine.until(lambda: len(engine.running) == 2)

    large = start(llm, "large", n=2, structured_outputs=schema_of(1_100_000))
    with pytest.raises(InvalidRequest, match=r"broke 2 times over this request's message, which has 11\d{5} bytes"):
        await asyncio.wait_for(large, 10)
    await engine.allow(None)

    assert await running == [LONG[:60]] * 2
    assert await start(llm, "next") == [LONG[:60]]
    assert llm.backends.engines.engines[0].num_sessions == 3, "two of them were lost"


async def test_an_engine_core_that_dies_with_a_large_request_does_not_fail_it(connect, engine):
    llm = await connect()
    engine.pause()
    large = start(llm, structured_outputs=schema_of(1_100_000))
    for num_starts in range(1, 4):
        await engine.until(lambda num=num_starts: len(engine.requests) == num)
        await engine.kill()
        await engine.start()

    await engine.allow(None)

    assert await asyncio.wait_for(large, 10) == [LONG[:60]]


async def test_log_probabilities_of_a_prompt_that_fit_no_message_are_refused(connect, engine):
    """258 candidates for each of 511 tokens have a megabyte."""
    llm = await connect(max_message_bytes=MIB, max_logprobs=-1)

    with pytest.raises(
        InvalidRequest, match=r"prompt_logprobs=-1 with a prompt of 511 tokens takes a message of 10\d{5} bytes"
    ):
        await start(llm, prompt=[104] * 511, max_tokens=1, prompt_logprobs=-1)

    assert not engine.requests
    assert await start(llm, prompt=[104] * 511, max_tokens=1, prompt_logprobs=200) == [LONG[:1]]


@pytest.mark.parametrize("case", ["text", "conversation"])
async def test_what_fits_no_message_to_a_tokenizer_is_refused_with_its_size_and_the_limit(connect, engine, case):
    llm = await connect(max_message_bytes=MIB)
    llm._intake._inputs.limits = Limits(llm.settings, context=SimpleNamespace(max_model_len=1 << 20), vocab_size=258)
    llm._texts._model.limits._context = SimpleNamespace(max_model_len=1 << 20)
    text = "x" * 1_100_000

    async def ask():
        match case:
            case "text":
                await start(llm, prompt=text)
            case _:
                await llm.texts.encode_chat([{"role": "user", "content": text}])

    with pytest.raises(InvalidRequest, match=rf"takes a message of 1[12]\d{{5}} bytes; the limit is {MIB}"):
        await ask()
    assert await start(llm) == [LONG[:60]]


async def test_a_tokenizer_that_takes_over_many_long_outputs_gets_them_in_messages_of_bounded_size(connect, engine, tokenizer):
    """Handles are opened with all that was generated: here 1.4 megabytes."""
    tokenizer.max_receive_bytes = MIB
    await tokenizer.kill()
    await tokenizer.start()
    llm = await connect()
    engine.tokens_per_step = 30_000
    engine.max_model_len = 1 << 20
    llm._intake._inputs.limits = Limits(llm.settings, context=SimpleNamespace(max_model_len=1 << 20), vocab_size=258)
    engine.pause()
    tasks = [start(llm, f"r{i}", max_tokens=60_000, ignore_eos=True) for i in range(12)]
    await engine.until(lambda: len(engine.running) == 12)
    await engine.take(1)
    await tokenizer.until_brought(1)
    async with llm.backends.detokenizer._turn:  # the step's texts are there
        pass

    await tokenizer.kill()
    await tokenizer.start()
    await engine.allow(None)

    expected = (TEXT * (60_000 // len(TEXT) + 1))[:60_000]
    assert await asyncio.gather(*tasks) == [[expected]] * 12
