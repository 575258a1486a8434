"""Counters return to zero after every kind of end of requests: admission, unfinished requests, handles, the engine client's."""

import asyncio
import contextlib

import httpx
import pytest

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.beam_search import BeamSearchParams, beam_search
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import TetradError, Unavailable

HI = [{"role": "user", "content": "hi"}]
GOOD = {
    "/v1/completions": {"model": "fake", "prompt": ["a", "b"], "n": 2, "max_tokens": 40},
    "/v1/chat/completions": {"model": "fake", "messages": HI, "n": 2, "max_tokens": 40, "logprobs": True},
    "/v1/messages": {"model": "fake", "messages": HI, "max_tokens": 40},
    "/v1/responses": {"model": "fake", "input": "hi", "max_output_tokens": 40},
}
WRONG = {
    "/v1/completions": {"model": "fake", "prompt": [[104], [99999], [105]], "max_tokens": 40},
    "/v1/chat/completions": {"model": "fake", "messages": [{"role": "user", "content": "forbidden"}]},
    "/v1/messages": {"model": "fake", "messages": HI * 400, "max_tokens": 600},
    "/v1/responses": {"model": "fake", "input": "hi " * 400, "max_output_tokens": 40},
}


@pytest.fixture
async def frontend(serve_frontend, monkeypatch):
    """A frontend with its AsyncLLM, which nothing outside shows."""
    made = []
    real = AsyncLLM.__init__

    def note(self, *arguments):
        made.append(self)
        real(self, *arguments)

    monkeypatch.setattr(AsyncLLM, "__init__", note)
    async with serve_frontend(max_num_requests=60, max_num_queued_tokens=10_000, sse_keep_alive_s=0.05) as running:
        running.llm = made[0]
        yield running


async def assert_nothing_left(llm):
    async with asyncio.timeout(10):
        await llm.wait_idle()
        while llm.admission.num_requests:  # noqa: ASYNC110 - the end of an abandoned tokenization sends no signal
            await asyncio.sleep(0.005)
    assert llm.admission.num_queued_tokens == 0
    engine = llm.backends.engines.engines[0]
    assert (engine.num_unfinished, len(engine._requests._refused._timers)) == (0, 0)
    assert not llm.backends.requests._active
    assert not llm.backends.detokenizer._open


async def leave(http, path, body, after_s):
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(after_s):
            await http.post(path, json=body)


@pytest.mark.parametrize("path", GOOD)
async def test_any_mix_of_ends_leaves_nothing(frontend, engine, tokenizer, path):
    http, good = frontend.http, GOOD[path]
    engine.pause()
    tokenizer.hung.clear()
    late = {"x-request-timeout": "0.2"}
    tasks = [leave(http, path, good | {"stream": stream}, 0.1 + i / 10) for stream in (False, True) for i in range(3)]
    tasks += [http.post(path, json=good, headers=late), http.post(path, json=good | {"stream": True}, headers=late)]
    tasks += [http.post(path, json=WRONG[path]), http.post(path, json=good | {"stop": ["x"] * 1000})]
    running = [asyncio.create_task(each) for each in tasks]
    await asyncio.sleep(0.15)
    tokenizer.hung.set()
    await asyncio.sleep(0.15)
    rejected = engine.reject
    engine.reject = lambda _: Unavailable("full")
    running += [asyncio.create_task(http.post(path, json=good))]
    await asyncio.sleep(0.1)
    engine.reject = rejected

    await engine.allow(None)
    served = await http.post(path, json=good)
    await asyncio.gather(*running, return_exceptions=True)

    assert served.status_code == 200
    await assert_nothing_left(frontend.llm)


@pytest.mark.parametrize("end", ["whole", "left", "refused"])
async def test_a_beam_search_leaves_nothing(connect, engine, end):
    llm = await connect(max_num_requests=2 if end == "refused" else 60)
    if end == "left":
        engine.pause()
    held = [await llm.add_request("held", "hi", SamplingParams(max_tokens=500))] if end == "refused" else []
    task = asyncio.create_task(beam_search(llm, "b", "hi", BeamSearchParams(beam_width=3, max_tokens=5)))
    if end == "left":
        await engine.until(lambda: engine.running)
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, TetradError):
        await task
    for stream in held:
        stream.close()

    await assert_nothing_left(llm)
