"""One call of a thousand outputs beside other clients, in real processes: their latency, quiet and attacked, in one run."""

import asyncio
import itertools
import statistics
import time

import httpx
import pytest

from tests.e2e.conftest import ONE_TOKENIZER

MODEL = "smollm2-135m-instruct"
BIAS = {str(token_id): 1 for token_id in range(1000, 5500)}
NUM_CLIENTS = 4
QUIET_S = 1.5


@pytest.fixture(scope="module")
def stack(start_module_server):
    """Steps of 10 ms, as a GPU has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.01")
        return start_module_server("--device", "sim", *ONE_TOKENIZER, "--max-model-len", "4096")


async def complete(client: httpx.AsyncClient, **fields: object) -> float:
    """Return the seconds that a completion took."""
    body = {"model": MODEL, "prompt": "x y z", "temperature": 0, "ignore_eos": True, "max_tokens": 4} | fields
    started = time.perf_counter()
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text[:1000]
    assert len(response.json()["choices"]) == fields.get("n", 1)
    return time.perf_counter() - started


async def latencies(client: httpx.AsyncClient, beside: "asyncio.Task[None]") -> list[float]:
    """Return the latencies of clients that send one request after another while `beside` goes on."""

    async def send() -> list[float]:
        return [await complete(client) for _ in iter(beside.done, True)]

    return list(itertools.chain.from_iterable(await asyncio.gather(*(send() for _ in range(NUM_CLIENTS)))))


def test_a_thousand_outputs_leave_others_their_latency(stack):
    """In order of arrival alone, others wait for all of them: 8 times their quiet median, and more the slower the device."""

    async def attack(client):
        for _ in range(3):
            await complete(client, n=1024, logit_bias=BIAS, max_tokens=5)

    async def run():
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            await complete(client)
            quiet = await latencies(client, asyncio.create_task(asyncio.sleep(QUIET_S)))
            return quiet, await latencies(client, asyncio.create_task(attack(client)))

    quiet, attacked = asyncio.run(run())

    assert statistics.median(attacked) <= 4 * statistics.median(quiet)
