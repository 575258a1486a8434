"""Requests whose messages, together or alone, are larger than a peer takes, in real processes: all are answered."""

import asyncio
import json

import httpx
import pytest

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def stack(start_module_server):
    """An engine core that reads messages of 8 MiB, and steps that take time: a kill must come in the midst of the requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.004")
        patch.setenv("TETRAD_ENGINE_CORE_MAX_MESSAGE_BYTES", str(8 << 20))
        flags = ("--max-model-len", "4096", "--max-logprobs", "-1", "--tokenizer-pool-size", "1", "--log-level", "info")
        return start_module_server("--device", "sim", *flags)


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


def test_logprobs_that_fit_no_message_are_refused_and_cost_no_worker(stack):
    """Of each token of a real vocabulary, which has 49,152."""
    body = {"model": MODEL, "prompt": [1000 + i for i in range(300)], "max_tokens": 2, "prompt_logprobs": -1}
    short = body | {"prompt": body["prompt"][:5], "logprobs": -1}
    num_lost_workers = stack.output().count("worker.lost")

    refused = httpx.post(f"{stack.url}/v1/completions", json=body)
    taken = httpx.post(f"{stack.url}/v1/completions", json=short, timeout=60)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt_logprobs"
    assert "the limit is" in refused.json()["error"]["message"]
    [choice] = taken.json()["choices"]
    assert [position and len(position) for position in choice["prompt_logprobs"]] == [None, *[49_152] * 4]
    # By their texts, of which some tokens have the same.
    assert all(len(top) > 45_000 for top in choice["logprobs"]["top_logprobs"])
    assert stack.output().count("worker.lost") == num_lost_workers


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
    """40 requests with 300 KB each have 12 MB together when the next engine core is sent them."""
    schema = {"type": "array", "items": {"enum": [7]}, "minItems": 30, "maxItems": 30, "description": "x" * 300_000}
    constraint = {"json": schema, "disable_any_whitespace": True}
    large = [{"structured_outputs": constraint, "ignore_eos": False, "max_tokens": 150}] * 40
    killed = stack.process_of("engine_core_svc")

    async def run():
        answers = asyncio.create_task(with_others(stack, *large))
        before = stack.metric("generation_tokens_total")
        while await asyncio.to_thread(stack.metric, "generation_tokens_total") - before < 600:
            pass
        assert not answers.done(), "the requests were over before the kill"
        killed.kill()
        return await answers

    answers, num_others = asyncio.run(run())

    assert all(json.loads(text) == [7] * 30 for [text] in answers)
    assert num_others >= 1
    assert num_lost(stack) == 1, "the kill alone"
