"""Requests that share images, through all four services: their tensors are sent once, and each request has its own tokens.

The engine core forgets tensors at the end of the last request that has them, while further requests without them may be on
their way: these are sent again. Tokens are transformers' in any case.
"""

import asyncio
from collections import Counter

import pytest

from tests.e2e.adapted_stack import kill, restartable, served, steps_pass
from tests.e2e.test_images import NUM_TOKENS, SMALL, Case, asked, client_of, expected
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tetrad.engine_core_svc.api import servicer

CONTENT = ["What is on", SMALL, "this one?"]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A tiny model, and what transformers answers to `CONTENT`."""
    directory = tmp_path_factory.mktemp("images")
    save_vision_model(directory, "qwen3_vl")
    return Case(directory, [expected(VisionReference(directory), CONTENT)])


@pytest.fixture
def copies(monkeypatch):
    """Counts the requests that an engine core receives with tensors (True) and without (False)."""
    counts: Counter[bool] = Counter()
    decode = servicer.decode_inputs

    async def counting(features):
        inputs = await decode(features)
        counts[bool(inputs)] += 1
        return inputs

    monkeypatch.setattr(servicer, "decode_inputs", counting)
    return counts


async def choices(http, **fields):
    """Return the tokens of each output."""
    answer = await http.post("/v1/chat/completions", json=asked(CONTENT, logprobs=False, **fields))
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in sorted(answer.json()["choices"], key=lambda choice: choice["index"])]


async def test_outputs_of_a_request(case, copies):
    async with served(case.directory, "n", max_model_len=512) as llm, client_of(llm) as http:
        outputs = await choices(http, n=8)

    assert outputs == [case.expected[0].token_ids] * 8
    assert copies == {True: 1, False: 7}


async def test_outputs_of_a_request_whose_engine_core_is_killed(case, copies):
    async with restartable(case.directory, "n-killed", max_model_len=512) as services, client_of(services.llm) as http:
        running = asyncio.create_task(choices(http, n=8, max_tokens=40))
        await steps_pass(services.llm, 6)
        assert not running.done()
        await kill(services, "engine_core")
        outputs = await running

    assert [ids[:NUM_TOKENS] for ids in outputs] == [case.expected[0].token_ids] * 8
    assert [len(ids) for ids in outputs] == [40] * 8
    assert copies == {True: 2, False: 14}


async def test_many_short_requests_that_begin_and_end_at_all_times(case, copies):
    async with served(case.directory, "short", max_model_len=512) as llm, client_of(llm) as http:

        async def ask(number):
            for _ in range(number):
                await asyncio.sleep(0)
            return [await choices(http, n=1 + number % 2, max_tokens=1 + number % 3) for _ in range(4)]

        answers = await asyncio.gather(*map(ask, range(16)))

    for number, calls in enumerate(answers):
        assert calls == [[case.expected[0].token_ids[: 1 + number % 3]] * (1 + number % 2)] * 4
    assert copies[False] > 0
