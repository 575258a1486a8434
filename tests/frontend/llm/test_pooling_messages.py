"""A pooling request with thousands of inputs takes one admission, few tokenizer calls and about one engine message a step."""

import asyncio
from array import array

import pytest

from tests.frontend.fakes.pooling_engine import STEP_TOKENS, PoolingEngine
from tests.frontend.llm.test_async_llm import OpenSpans
from tetrad.frontend.llm.pooling_window import PoolingWindow
from tetrad.frontend.net.discovery import Endpoint
from tetrad.frontend.request.pooling import EMBED, PooledTensor, PoolingParams
from tetrad.frontend.request.steps import OddOutput, RichUpdate, Step
from tetrad.services.errors import InternalError, InvalidRequest, Overloaded, PromptTooLong

TEXTS = [f"this is text {place:5}" for place in range(2048)]  # of 18 tokens each: the fake tokenizer knows bytes
EMBEDDING = PoolingParams(task=EMBED)


@pytest.fixture
def make_engine():
    return PoolingEngine


async def test_two_thousand_texts_are_tokenized_in_few_messages_and_sent_in_about_one_a_step(connect, engine, tokenizer):
    llm = await connect()
    engine.num_expected = len(TEXTS)

    outputs = await llm.encode_all(TEXTS, [EMBEDDING] * len(TEXTS), "r")

    assert [bytes(map(int, output.outputs.values)).decode() for output in outputs] == [text[-5:] for text in TEXTS]
    assert tokenizer.num_calls <= 6
    assert engine.num_steps == -(-len(TEXTS) // (STEP_TOKENS // len(TEXTS[0])))
    assert engine.num_add_messages <= engine.num_steps + 4


async def test_two_thousand_texts_are_one_admission(connect, engine):
    llm = await connect(max_num_requests=1)
    engine.pause()
    large = asyncio.create_task(llm.encode_all(TEXTS, [EMBEDDING] * len(TEXTS), "large"))
    await engine.until(lambda: engine.requests)

    with pytest.raises(Overloaded):
        await llm.encode_all(["another"], [EMBEDDING], "small")
    await engine.allow(None)

    assert len(await large) == len(TEXTS)


async def test_a_failed_request_sends_none_of_its_waiting_inputs(connect, engine):
    """One step has the error of one request and the answer of another, which makes room for the next input."""
    llm = await connect()
    llm._pooling_intake._window = PoolingWindow(lambda: 8)
    engine.pause()
    other = asyncio.create_task(llm.encode_all(["dddd"], [EMBEDDING], "other"))
    await engine.until(lambda: len(engine.running) == 1)
    failing = asyncio.create_task(llm.encode_all(["aaaa", "bbbb", "cccc"], [EMBEDDING] * 3, "failing"))
    await engine.until(lambda: len(engine.running) == 2)

    answered, failed = (request.handle for request in engine.requests)
    answer = RichUpdate(finish_reason="stop", pooled=PooledTensor((1,), array("f", [1.0])))
    step = Step(0, [(failed, [], RichUpdate(error=OddOutput("no answer"))), (answered, [], answer)])
    await llm.backends.processor.process(step)
    await other
    with pytest.raises(InternalError, match="no answer"):
        await failing

    assert all(llm.backends.requests.find(handle) is None for handle in range(10))


async def test_an_answer_outlives_its_engine_core(connect, engine):
    """As in a rolling upgrade: discovery finds only the next engine core, which has not answered yet."""
    llm = await connect()
    job = await llm.add_pooling_request("r", ["hello"], [EMBEDDING])
    async with asyncio.timeout(10):
        while not job.state.finished:  # noqa: ASYNC110 - the state tells only the caller that waits for it
            await asyncio.sleep(0.005)

    llm.backends.engines._take_round([Endpoint(0, "unix:/nowhere")])

    assert llm.backends.engines.engines[0].info is None
    assert len(await job.answers()) == 1


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"token_type_boundary": -1}, r"token_type_boundary must be in \[0, 2147483647\], got -1\."),
        ({"token_type_boundary": "a"}, r"token_type_boundary must be an integer, got 'a'\."),
        ({"use_activation": "yes"}, r"use_activation must be a boolean, got 'yes'\."),
        ({"dimensions": 2.5}, r"dimensions must be an integer, got 2\.5\."),
    ],
)
async def test_parameters_that_fit_no_message_are_refused_before_the_request_is_admitted(connect, params, text):
    llm = await connect(max_num_requests=1)

    with pytest.raises(InvalidRequest, match=text):
        await llm.encode("text", PoolingParams(**params), "r")

    assert llm.num_unfinished_requests == 0
    await llm.encode("text 1", EMBEDDING, "another")


async def test_a_prompt_may_have_a_salt_of_its_own(connect, engine):
    """Prompts of a program's tenants must not share prefixes."""
    llm = await connect()

    prompts = [{"prompt": "aaaaa", "cache_salt": "one"}, {"prompt_token_ids": [97] * 5, "cache_salt": "two"}, "aaaaa"]
    await llm.encode_all(prompts, [EMBEDDING] * 3, "r", cache_salt="common")

    assert [request.cache_salt for request in engine.requests] == ["one", "two", "common"]


async def test_an_input_may_fill_the_whole_context(connect, engine):
    """The error of a longer one mentions no output, as there is none."""
    llm = await connect()

    await llm.encode({"prompt_token_ids": [5] * 512}, EMBEDDING, "r")
    with pytest.raises(PromptTooLong, match=r"length is 512 tokens\. However, you requested 513 tokens\. Please"):
        await llm.encode({"prompt_token_ids": [5] * 513}, EMBEDDING, "r")


async def test_an_input_too_large_for_a_message_leaves_no_span_open(connect, engine):
    engine.max_model_len = 400_000
    llm = await connect(max_message_bytes=1 << 20)
    spans = llm._pooling_intake._tracer = OpenSpans()

    with pytest.raises(InvalidRequest, match=r"The input takes a message of .*max_message_bytes"):
        await llm.encode({"prompt_token_ids": [5] * 300_000}, EMBEDDING, "r")

    assert spans.names == []
