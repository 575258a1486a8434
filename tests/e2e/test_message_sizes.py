"""Requests whose messages together are larger than gRPC takes, in real processes: they are answered, and so are the others."""

import asyncio
import json

import httpx
import pytest

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def stack(start_module_server):
    """Steps that take time: a kill must come in the midst of the requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.002")
        return start_module_server("--device", "sim", "--max-model-len", "4096", "--log-level", "info")


def num_lost(stack) -> int:
    return stack.output().count("engine.lost")


async def complete(client: httpx.AsyncClient, **fields: object) -> list[str]:
    body = {"model": MODEL, "prompt": "x", "temperature": 0, "ignore_eos": True, "max_tokens": 4} | fields
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text[:1000]
    return [choice["text"] for choice in response.json()["choices"]]


async def with_others(stack, *large):
    """Return the answers to large requests, and how many others were answered meanwhile."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=120, limits=httpx.Limits(max_connections=None)) as client:
        tasks = [asyncio.create_task(complete(client, **fields)) for fields in large]
        num_others = 0
        while not all(task.done() for task in tasks):
            await complete(client)
            num_others += 1
        return [await task for task in tasks], num_others


def test_a_thousand_outputs_with_thousands_of_biases_hang_nobody(stack):
    """A body of 49 KB, whose messages would have 45 MB with a copy of the biases for each output."""
    bias = {str(token_id): 1 for token_id in range(1000, 5500)}
    memory = stack.process_of("frontend").memory_info().rss

    [[texts], num_others] = asyncio.run(with_others(stack, {"n": 1024, "logit_bias": bias, "max_tokens": 1}))

    assert len(texts) == 1024
    assert num_others >= 1
    assert num_lost(stack) == 0
    assert stack.process_of("frontend").memory_info().rss < memory + (100 << 20)


def test_large_schemas_in_flight_live_through_the_death_of_the_engine_core(stack):
    """130 requests with 300 KB each have 39 MB together when the next engine core is sent them."""
    schema = {"type": "array", "items": {"enum": [7]}, "minItems": 60, "maxItems": 60, "description": "x" * 300_000}
    constraint = {"json": schema, "disable_any_whitespace": True}
    large = [{"structured_outputs": constraint, "ignore_eos": False, "max_tokens": 300}] * 130
    killed = stack.process_of("engine_core_svc")

    async def run():
        answers = asyncio.create_task(with_others(stack, *large))
        before = stack.metric("generation_tokens_total")
        while await asyncio.to_thread(stack.metric, "generation_tokens_total") - before < 5_000:
            pass
        assert not answers.done(), "the requests were over before the kill"
        killed.kill()
        return await answers

    answers, num_others = asyncio.run(run())

    assert all(json.loads(text) == [7] * 60 for [text] in answers)
    assert num_others >= 1
    assert num_lost(stack) == 1, "the kill alone"
