"""AsyncLLM: its start, the facts of its model, and the routing of requests."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.frontend.asking import run
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import FailedPrecondition, InvalidRequest, Unavailable
from tetrad.services.observability.tracing import NoSpan, NoTracer


class OpenSpans(NoTracer):
    """A tracer that knows which spans have not ended."""

    def __init__(self):
        self.names = []

    def start_span(self, name, context, **_):
        self.names.append(name)
        span = NoSpan(context)
        return SimpleNamespace(context=context, set_attributes=span.set_attributes, end=lambda **_: self.names.remove(name))


async def test_a_request_that_no_engine_can_have_leaves_no_span_open(llm):
    spans = llm._intake._tracer = OpenSpans()

    with pytest.raises(InvalidRequest, match="out of range"):
        await run(llm, data_parallel_rank=7)

    assert spans.names == []


async def test_requests_are_spread_over_engines(tokenizer, engine, sockets, connect):
    second = type(engine)(sockets / "e2")
    await second.start()
    llm = await connect(engine_targets=(engine.target, second.target))

    # All at once: one that ended before the next is placed would leave its engine as idle as the other.
    engine.pause()
    second.pause()
    asking = asyncio.gather(*(run(llm, request_id=f"r{i}") for i in range(6)))
    for each in (engine, second):
        await each.until(lambda each=each: len(each.running) == 3)
        await each.allow(None)
    await asking
    await run(llm, request_id="pinned", data_parallel_rank=1)

    assert (len(engine.requests), len(second.requests)) == (3, 4)
    await llm.close()
    await second.kill()


async def test_a_tokenizer_of_another_model_is_refused_at_the_start(tokenizer, connect):
    tokenizer.vocab_size = 300

    with pytest.raises(FailedPrecondition, match=r"has 300 tokens, but the model \S* has 258"):
        await connect()


async def test_connect_gives_up_with_a_clear_text(tokenizer, engine, connect):
    await engine.kill()

    with pytest.raises(Unavailable, match=r"engine core at unix:.* was not ready within 0.2 s"):
        await connect(ready_timeout_s=0.2)


async def test_chat_parts_become_text(llm):
    prompt = await llm.texts.encode_chat(
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    )

    assert prompt["prompt"] == "<user>a\nb\n<assistant>"


async def test_generation_config_gives_defaults(tokenizer, connect):
    tokenizer.generation_config = '{"temperature": 0.6, "top_p": 0.9, "do_sample": true}'
    llm = await connect()

    assert llm.get_default_sampling_params().temperature == 0.6


async def test_a_stream_interval_of_the_settings_is_that_of_requests_that_do_not_say(tokenizer, engine, connect):
    llm = await connect(stream_interval=5)
    engine.step_delay_s = 0.005  # what lies together is one output, whatever the interval

    async def num_outputs(**params):
        fields = SamplingParams(max_tokens=16, ignore_eos=True, **params)
        return len([output async for output in llm.generate("hello", fields, f"r{len(params)}")])

    fewer, every = await num_outputs(), await num_outputs(stream_interval=1)

    assert fewer <= 5 < every
    await llm.close()
